#!/usr/bin/env bash
# Makes an environment with the peers of speed.py: transformers and torch.
# Command: bash experiments/benchmarks/peers.sh [DIR]
# Hardware: any; needs the package index and 2 GB of disk.
# Expect: DIR/bin/python imports both. They are no dependencies of the package.
set -euo pipefail
place="${1:-.cache/peers}"
"${PYTHON:-python3}" -m venv "$place"
"$place/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0
"$place/bin/python" -c "import torch, transformers; print(torch.__version__, transformers.__version__)"
