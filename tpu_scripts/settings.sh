# shellcheck shell=bash
# What the scripts of this folder share; they source it. Settings come by flag
# or environment variable, words to the user go to standard error.

TPU_NAME=${TPU_NAME:-}
TPU_PROJECT=${TPU_PROJECT:-}
TPU_ZONE=${TPU_ZONE:-}
TPU_POLL_S=${TPU_POLL_S:-20}      # Seconds between two looks at a state.
TPU_RETRIES=${TPU_RETRIES:-5}     # Tries of a call that fails in passing.
TPU_RETRY_S=${TPU_RETRY_S:-10}    # Seconds between two tries.
TPU_CALL_S=${TPU_CALL_S:-600}     # Seconds that one call of gcloud may take.

say() { echo "$(basename "$0"): $*" >&2; }

die() {
  say "$*"
  exit 2
}

# Takes the flags of every script; fails on any other.
common_flag() {
  case $1 in
    --name=*) TPU_NAME=${1#*=} ;;
    --project=*) TPU_PROJECT=${1#*=} ;;
    --zone=*) TPU_ZONE=${1#*=} ;;
    -h | --help)
      sed -n '2,/^[^#]/{s/^# \{0,1\}//p;}' "$0"
      exit 0
      ;;
    *) return 1 ;;
  esac
}

# Ends the script unless a setting has its form: flag, variable, pattern,
# example.
expect() {
  local value=${!2:-}
  [[ $value =~ ^($3)$ ]] && return
  die "expected $1=VALUE (or $2) such as $4, found '$value'; give it."
}

# Checks what every script needs, and prepares a folder for what gcloud says.
check_common() {
  local tool
  for tool in gcloud timeout; do
    command -v "$tool" > /dev/null ||
      die "expected $tool on the PATH, found none; install it."
  done
  expect --name TPU_NAME '[a-z][-a-z0-9]{0,61}[a-z0-9]' my-first
  expect --project TPU_PROJECT '[a-z][-a-z0-9.:]*[a-z0-9]' my-project
  expect --zone TPU_ZONE '[a-z]+-[a-z]+[0-9]+-[a-z]' us-west4-a
  at=(--project="$TPU_PROJECT" --zone="$TPU_ZONE" --quiet)
  scratch=$(mktemp -d)
  error_file=$scratch/error
  trap 'rm -rf "$scratch"' EXIT
}

# Calls `gcloud compute tpus` within a time limit; its errors go to a file.
tpus() {
  timeout --foreground "$TPU_CALL_S" gcloud compute tpus "$@" \
    < /dev/null 2> "$error_file"
}

last_error() { grep -v '^ *$' "$error_file" | tail -n 1; }

# Waits so that a signal is handled at once; a trap then ends `sleeper`.
sleeper=""
pause() {
  sleep "$1" > /dev/null 2>&1 &
  sleeper=$!
  wait "$sleeper"
  sleeper=""
}

# Prints a field of a queued resource or node, NOT_FOUND where there is none.
field() {
  local kind=$1 what=$2 try
  for ((try = 1; try <= TPU_RETRIES; try++)); do
    tpus "$kind" describe "$TPU_NAME" "${at[@]}" --format="value($what)" &&
      return
    if grep -qiE 'NOT_FOUND|was not found' "$error_file"; then
      echo NOT_FOUND
      return
    fi
    grep -qiE 'PERMISSION_DENIED|UNAUTHENTICATED|auth login' \
      "$error_file" && break
    [ "$try" = "$TPU_RETRIES" ] || pause "$TPU_RETRY_S"
  done
  say "cannot describe $TPU_NAME: $(last_error)"
  return 1
}

# Sets `hosts` to the number of hosts; ends the script unless it is READY.
find_hosts() {
  local found state
  found=$(field tpu-vm 'state,networkEndpoints.len()') || exit 1
  read -r state hosts <<< "$found"
  [ "$state" = READY ] || {
    say "expected $TPU_NAME to be READY, found $state; create.sh makes it," \
      "after delete.sh where it was preempted."
    exit 1
  }
}

# Runs a command on one host by ssh: host, command, limit in seconds (0: none).
on_host() {
  timeout --foreground "$3" gcloud compute tpus tpu-vm ssh "$TPU_NAME" \
    "${at[@]}" --worker="$1" --ssh-flag="-o ConnectTimeout=15" \
    --ssh-flag="-o ServerAliveInterval=15" \
    --ssh-flag="-o ServerAliveCountMax=4" --command="$2" \
    < /dev/null 2> "$scratch/ssh.$1"
}

ssh_error() { grep -v '^ *$' "$scratch/ssh.$1" | tail -n 1; }

# As on_host, with "[host] " before each line of output. Returns the exit code
# of the command, 255 where the host cannot be reached: gcloud's own exit code
# does not tell the two apart, so the command reports its code itself.
ask() {
  local host=$1 line code=""
  while IFS= read -r line; do
    case $line in
      exit:*) code=${line#exit:} ;;
      *) printf '[%s] %s\n' "$host" "$line" ;;
    esac
  done < <(on_host "$host" "( $2 ) 2>&1; echo exit:\$?" "$3")
  [ -n "$code" ] && return "$code"
  say "host $host cannot be reached: $(ssh_error "$host")"
  return 255
}

# Asks all hosts at once; returns the largest exit code.
ask_all() {
  local host code worst=0 pids=()
  for ((host = 0; host < hosts; host++)); do
    ask "$host" "$1" "$2" &
    pids+=($!)
  done
  for host in "${!pids[@]}"; do
    code=0
    wait "${pids[$host]}" || code=$?
    [ "$code" -le "$worst" ] || worst=$code
  done
  return "$worst"
}

# Prints the command that runs a verb of on_host.sh where setup.sh put it.
verb() {
  local script=jaxrl_llm/current/tpu_scripts/on_host.sh
  printf '[ -e %s ] || { echo "not set up; run setup.sh"; exit 3; }; ' "$script"
  printf 'bash %s' "$script"
  printf ' %q' "$@"
}
