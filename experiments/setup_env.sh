#!/usr/bin/env bash
# Sets up the virtual environment .venv of this checkout with the versions of
# tests/lock-X.Y.txt, and does nothing where that was done before. Source it
# from the root of the checkout; it then leaves the interpreter in VENV_PYTHON.
#
# The interpreter is $PYTHON, else the first of python3.11 to python3.13 that
# runs and has a lock file. A set-up that was cut short is done again.

# Prints "X.Y" of an interpreter that can make virtual environments.
python_version() {
  "$1" -c 'import ensurepip, sys, venv
print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

choose_python() {
  local candidate version
  for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
    version=$(python_version "$candidate") || continue
    if [ -f "tests/lock-$version.txt" ]; then
      echo "$candidate $version"
      return
    fi
  done
  echo "setup_env: no usable Python among" \
    "'${PYTHON:-python3.11 python3.12 python3.13 python3}';" \
    "need one with venv and a file tests/lock-X.Y.txt;" \
    "install one and name it by PYTHON=/path/to/python3.11." >&2
  return 1
}

setup_env() {
  local chosen python version lock wanted
  chosen=$(choose_python) || return 1
  python=${chosen% *}
  version=${chosen##* }
  lock="tests/lock-$version.txt"
  VENV_PYTHON="$PWD/.venv/bin/python"
  wanted=$(cat "$lock" setup.py experiments/setup_env.sh | sha256sum)
  wanted="$version ${wanted%% *}"
  if [ -x "$VENV_PYTHON" ] && [ "$(cat .venv/stamp 2>/dev/null)" = "$wanted" ]
  then
    return 0
  fi
  echo "Setting up .venv with Python $version and $lock (minutes, once)." >&2
  rm -f .venv/stamp
  "$python" -m venv --clear .venv || return 1
  "$VENV_PYTHON" -m pip install -qq --no-deps -r "$lock" || return 1
  "$VENV_PYTHON" -m pip check >&2 || return 1
  # So that scripts and notebooks find the checkout from any folder.
  "$VENV_PYTHON" -c 'import site, sys
with open(site.getsitepackages()[0] + "/jaxrl_llm.pth", "w") as file:
  file.write(sys.argv[1] + "\n")' "$PWD" || return 1
  # The stamp comes last and by rename: without it the set-up is not done.
  echo "$wanted" > .venv/stamp.new
  mv .venv/stamp.new .venv/stamp
}

setup_env
