#!/usr/bin/env bash
# The part of setup.sh, run.sh, logs.sh and fetch.sh that runs on a TPU host;
# they call it by ssh: bash on_host.sh VERB …
#
# Hardware: a host of the slice. Cost, time: those of what is started.
# Expect in ~/jaxrl_llm: COMMIT/ (the checkout), current -> COMMIT, .venv/,
#   runs/, .cache/ (which every checkout sees), jobs/TOKEN/ with command, log
#   and, at the end, exit; jobs/last -> TOKEN.
set -euo pipefail

root=$HOME/jaxrl_llm
checkout=$(cd "$(dirname "$0")/.." && pwd -P)
script=$checkout/tpu_scripts/on_host.sh
mkdir -p "$root/jobs"

refuse() {
  echo "$*"
  exit 3
}

usable() { "$1" -c 'import ensurepip, venv' 2> /dev/null; }

# Makes .venv with a Python that has a lock file; with uv's where the host has
# none.
make_environment() {
  local python
  rm -rf .venv
  for python in python3.13 python3.12 python3.11; do
    usable "$python" || continue
    "$python" -m venv .venv
    return
  done
  python3 -m pip install --quiet --user uv
  python3 -m uv venv --quiet --seed --python 3.12 .venv
}

# Sets up ~/jaxrl_llm/.venv for this checkout and makes the checkout current.
setup() {
  local python version wanted
  cd "$root"
  wanted=$(cat "$checkout"/tests/lock-*.txt "$checkout/setup.py" "$script" |
    sha256sum)
  if [ "$(cat .venv/stamp 2> /dev/null)" != "$wanted" ]; then
    ! running || refuse "the environment changes and a command runs;" \
      "end it with run.sh --stop"
    make_environment
    python=$root/.venv/bin/python
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    "$python" -m pip install --quiet \
      -c "$checkout/tests/lock-$version.txt" "${checkout}[tpu,gguf]"
    # The stamp comes last and by rename: without it .venv is made again.
    echo "$wanted" > .venv/stamp.new
    mv .venv/stamp.new .venv/stamp
  fi
  ln -sfn "${checkout##*/}" current.new
  mv -T current.new current
  echo "$(hostname) is set up with ${checkout##*/}"
}

# Says whether the last command still runs: its wrapper holds the lock.
running() { ! flock -n -s "$root/jobs/lock" true; }

check() {
  [ -e "$root/.venv/stamp" ] || refuse "no environment; run setup.sh"
  ! running || refuse "still running: $(cat "$root/jobs/last/command");" \
    "follow it with logs.sh or end it with run.sh --stop"
}

# Starts a command that goes on without the connection. gcloud repeats a
# command whose connection broke, so a token is started once.
start() {
  local token=$1 folder=$root/jobs/$1
  shift
  [ ! -e "$folder" ] || return 0
  check
  mkdir "$folder"
  printf '%q ' "$@" > "$folder/command"
  : > "$folder/log"
  exec 9> "$root/jobs/lock"
  flock -w 5 9 || refuse "another command started just now"
  setsid bash "$script" work "$folder" "$@" > /dev/null 2>&1 < /dev/null &
  echo $! > "$folder/pid"
  ln -sfn "$token" "$root/jobs/last.new"
  mv -T "$root/jobs/last.new" "$root/jobs/last"
}

# Runs the command, and leaves its exit code when it ends. SIGTERM reaches the
# whole process group: the command may save, this waits for it.
work() {
  local folder=$1 child code last=0
  shift
  trap : TERM INT HUP
  cd "$checkout"
  PATH=$root/.venv/bin:$PATH PYTHONPATH=$checkout PYTHONUNBUFFERED=1 \
    "$@" >> "$folder/log" 2>&1 9>&- &
  child=$!
  while :; do
    code=0
    wait "$child" || code=$?
    kill -0 "$child" 2> /dev/null || break
  done
  # A signal may have ended the last wait; the code itself is still known.
  wait "$child" || last=$?
  [ "$last" = 127 ] || code=$last
  echo "$code" > "$folder/exit.new"
  mv "$folder/exit.new" "$folder/exit"
}

# Prints the log from a line on, as "line:NUMBER:TEXT", until the command ends;
# then "exit:CODE", 137 where it left none.
follow() {
  local folder=$root/jobs/last number=$1 line until=()
  [ -e "$folder" ] || refuse "nothing was started; use run.sh"
  ! running || until=(-f -s 0.2 --pid="$(cat "$folder/pid")")
  while IFS= read -r line || [ -n "$line" ]; do
    number=$((number + 1))
    printf 'line:%d:%s\n' "$number" "$line"
  done < <(tail -n "+$(($1 + 1))" ${until[@]+"${until[@]}"} "$folder/log")
  echo "exit:$(cat "$folder/exit" 2> /dev/null || echo 137)"
}

# Sends SIGTERM to the last command.
stop() {
  running || return 0
  kill -TERM -- "-$(cat "$root/jobs/last/pid")"
}

# Packs a working directory into packs/TOKEN.tar.gz, without what can be made
# again; without checkpoints unless told.
pack() {
  local token=$1 workdir=$2 without=(--exclude=./compilation_cache) code=0
  [ "${3:-}" = checkpoints ] || without+=(--exclude=./checkpoints)
  cd "$checkout"
  [ -d "$workdir" ] || refuse "no folder $workdir; give one of: $(ls runs)"
  mkdir -p "$root/packs"
  tar -C "$workdir" "${without[@]}" -czf "$root/packs/$token.new" . || code=$?
  # 1: a file grew meanwhile, as those of a running job do.
  [ "$code" -le 1 ] || exit "$code"
  mv "$root/packs/$token.new" "$root/packs/$token.tar.gz"
}

unpack_away() { rm -f "$root/packs/$1.tar.gz"; }

"$@"
