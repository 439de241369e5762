#!/usr/bin/env bash
# Makes the environments of the peers of speed.py, one folder each.
# Command: bash experiments/benchmarks/peers.sh [DIR]
# Hardware: any; needs the package index, a C++ compiler and 5 GB of disk.
# Expect: DIR/{transformers,trl,tunix,llamacpp}/bin/python, after some 20
#   minutes on two busy cores: llama.cpp is compiled, for the instruction sets
#   of this machine. None is a dependency of the package.
set -euo pipefail
place="${1:-.cache/peers}"

# make NAME PACKAGE...: an environment with these packages.
make() {
  "${PYTHON:-python3}" -m venv "$place/$1"
  "$place/$1/bin/pip" install --quiet "${@:2}"
  "$place/$1/bin/pip" freeze
}

make transformers torch==2.13.0 transformers==5.24.0
make trl torch==2.13.0 transformers==5.24.0 trl==1.16.0 \
  accelerate==1.15.0 datasets==5.2.0
make tunix google-tunix==0.1.7 jax==0.10.2 flax==0.12.8 optax==0.2.8 \
  qwix==0.1.8 transformers==5.12.1
CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF" \
  make llamacpp --no-binary llama-cpp-python llama-cpp-python==0.3.36
