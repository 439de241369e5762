#!/usr/bin/env bash
# Sets up and runs all the tests: bash tests/run.sh [pytest arguments].
# The interpreter is $PYTHON, else the first of python3.11 to python3.13.
set -euo pipefail
cd "$(dirname "$0")/.."
source experiments/setup_env.sh

export JAX_PLATFORMS=cpu
export JAX_COMPILATION_CACHE_DIR="$PWD/.cache/jax"
mkdir -p "$JAX_COMPILATION_CACHE_DIR"
workers=$(nproc)
if [ "$workers" -gt 2 ]; then workers=2; fi
exec "$VENV_PYTHON" -m pytest tests -q -n "$workers" --dist loadfile \
  --durations 15 "$@"
