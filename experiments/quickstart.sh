#!/usr/bin/env bash
# Trains SmolLM2-135M-Instruct on arithmetic with numbers up to ten, off-policy,
# from a fresh checkout: bash experiments/quickstart.sh [--config.key=value …]
#
# Sets up .venv, fetches the model, runs configs/quickstart.py. Stopped and
# started again, it resumes; finished, it shows its table again. Other settings
# need a folder of their own: WORKDIR=runs/other bash experiments/quickstart.sh
# --config.seed=1
set -euo pipefail
cd "$(dirname "$0")/.."
source experiments/setup_env.sh

bash experiments/fetch_smollm2.sh
exec "$VENV_PYTHON" -m jaxrl_llm run --config=configs/quickstart.py \
  --workdir="${WORKDIR:-runs/quickstart}" "$@"
