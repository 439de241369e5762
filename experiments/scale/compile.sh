#!/usr/bin/env bash
# Compiles large jobs for TPU slices, one after another, and keeps what
# `compile` prints: bash experiments/scale/compile.sh [NAME ...]
# Needs libtpu (pip install "jaxrl_llm[tpu]"), no TPU; minutes and 1 to 6 GiB
# each. A job that compiled before is left alone; delete its report to redo it.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python}
REPORTS=experiments/scale/reports
mkdir -p "$REPORTS"

# Name, configuration, topology, mesh, rows of a micro-batch, programs, model.
JOBS="
qwen3_8b_v5p_64_train v5p_128 v5p:4x4x4 fsdp=32,tensor=2 32 add,update qwen3-8b
qwen3_8b_v5p_64_decode v5p_128 v5p:4x4x4 fsdp=8,tensor=8 32 weights,prefill,fill,decode qwen3-8b
qwen3_8b_v5e_64_train v5e_64 v5e:8x8 fsdp=32,tensor=2 32 add,update qwen3-8b
qwen3_8b_v5e_64_decode v5e_64 v5e:8x8 fsdp=8,tensor=8 32 weights,prefill,fill,decode qwen3-8b
qwen3_8b_v6e_64_train v6e_64 v6e:8x8 fsdp=32,tensor=2 32 add,update qwen3-8b
qwen3_8b_v6e_64_decode v6e_64 v6e:8x8 fsdp=8,tensor=8 32 weights,prefill,fill,decode qwen3-8b
llama3.1_70b_v5p_256_train v5p_128 v5p:4x8x8 fsdp=64,tensor=4 64 add,update llama3.1-70b
llama3.1_70b_v5p_256_decode v5p_128 v5p:4x8x8 fsdp=32,tensor=8 64 weights,prefill,fill,decode llama3.1-70b
growth_16 v5p_128 v5p:2x2x4 fsdp=16 16 add qwen3-8b
growth_32 v5p_128 v5p:2x4x4 fsdp=32 32 add qwen3-8b
growth_64 v5p_128 v5p:4x4x4 data=2,fsdp=32 64 add qwen3-8b
growth_64_whole v5p_128 v5p:4x4x4 fsdp=64 64 add qwen3-8b
growth_128 v5p_128 v5p:4x4x8 data=4,fsdp=32 128 add qwen3-8b
growth_256 v5p_128 v5p:4x8x8 data=8,fsdp=32 256 add qwen3-8b
growth_v5e_64 v5e_64 v5e:8x8 fsdp=32,tensor=2 32 add qwen3-8b
growth_v5e_128 v5e_64 v5e:8x16 data=2,fsdp=32,tensor=2 64 add qwen3-8b
growth_v5e_256 v5e_64 v5e:16x16 data=4,fsdp=32,tensor=2 128 add qwen3-8b
"

while read -r name config topology mesh rows programs model; do
  [ -n "$name" ] || continue
  if [ "$#" -gt 0 ] && [[ " $* " != *" $name "* ]]; then continue; fi
  report="$REPORTS/$name.txt"
  [ -e "$report" ] && continue
  echo "$name"
  # 1: something does not fit, which is a result.
  code=0
  timeout 3600 "$PYTHON" -m jaxrl_llm compile \
    --config="configs/slices/$config.py" \
    --topology="$topology" --config.mesh="$mesh" \
    --config.train.rows_per_microbatch="$rows" \
    --config.compile.programs="$programs" --config.model.preset="$model" \
    > "$report.part" < /dev/null || code=$?
  if [ "$code" -gt 1 ]; then
    rm -f "$report.part"
    echo "$name: failed ($code)" >&2
    continue
  fi
  mv "$report.part" "$report"
done <<< "$JOBS"
