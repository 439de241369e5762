#!/usr/bin/env bash
# Asks for a TPU slice as a queued resource and waits until it is ACTIVE:
#   bash tpu_scripts/create.sh --name=NAME --project=PROJECT --zone=ZONE \
#     --accelerator-type=v5litepod-8 --runtime-version=v2-alpha-tpuv5-lite \
#     [--spot] [--keep]
#
# Hardware: one slice of --accelerator-type; a spot slice is cheaper and may be
#   taken away at any time.
# Cost: the list price of the slice, from ACTIVE until delete.sh. Waiting costs
#   nothing.
# Time: minutes to hours in the queue, at most TPU_WAIT_S (7200 s); after that
#   the request expires in the queue too.
# Expect: one line per state, then "NAME is ACTIVE with N hosts". If anything
#   else happens, Ctrl-C among it, what was asked for is deleted, unless --keep.
# Exit codes: 0 ACTIVE, 2 a wrong argument, 3 quota, 4 no capacity, 5 not in
#   time, 6 suspended or preempted, 1 anything else.
# Environment: TPU_NAME, TPU_PROJECT, TPU_ZONE, TPU_ACCELERATOR_TYPE and
#   TPU_RUNTIME_VERSION stand for the flags; TPU_WAIT_S; others in settings.sh.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/settings.sh"

TPU_WAIT_S=${TPU_WAIT_S:-7200}
spot=() keep="" ours=""
while [ $# -gt 0 ]; do
  case $1 in
    --accelerator-type=*) TPU_ACCELERATOR_TYPE=${1#*=} ;;
    --runtime-version=*) TPU_RUNTIME_VERSION=${1#*=} ;;
    --spot) spot=(--spot) ;;
    --keep) keep=1 ;;
    *) common_flag "$1" || die "expected a flag of --help, found '$1'." ;;
  esac
  shift
done
check_common
expect --accelerator-type TPU_ACCELERATOR_TYPE 'v[0-9][a-z]*-[0-9]+' v6e-8
expect --runtime-version TPU_RUNTIME_VERSION '[a-z0-9][-a-z0-9.]+' \
  v2-alpha-tpuv6e
[[ $TPU_WAIT_S =~ ^[0-9]+$ ]] ||
  die "expected whole seconds in TPU_WAIT_S, found '$TPU_WAIT_S'; set it."

# Deletes what this script asked for, if it did not become ACTIVE.
clean_up() {
  local code=$?
  trap - EXIT
  trap '' INT TERM HUP
  [ -z "$sleeper" ] || kill "$sleeper" 2> /dev/null || true
  if [ "$code" != 0 ] && [ -n "$ours" ]; then
    if [ -n "$keep" ]; then
      say "$TPU_NAME is kept, and may cost; end it with delete.sh."
    else
      bash "$here/delete.sh" --name="$TPU_NAME" --project="$TPU_PROJECT" \
        --zone="$TPU_ZONE" ||
        say "$TPU_NAME MAY STILL EXIST AND COST: run delete.sh until it ends."
    fi
  fi
  rm -rf "$scratch"
  exit "$code"
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# Ends the script with the exit code that an error text stands for.
fail() {
  case ${1,,} in
    *quota*)
      say "over quota: $1; ask for more quota, or take a smaller or spot slice."
      exit 3
      ;;
    *capacity* | *resource_exhausted* | *stockout* | *"not enough resources"*)
      say "no capacity: $1; wait, or take another zone."
      exit 4
      ;;
  esac
  say "failed: $1"
  exit 1
}

# Asks for the slice, again where the service fails in passing.
request() {
  local try error
  for ((try = 1; try <= TPU_RETRIES; try++)); do
    ours=1
    tpus queued-resources create "$TPU_NAME" "${at[@]}" \
      --node-id="$TPU_NAME" --accelerator-type="$TPU_ACCELERATOR_TYPE" \
      --runtime-version="$TPU_RUNTIME_VERSION" \
      --valid-until-duration="${TPU_WAIT_S}s" ${spot[@]+"${spot[@]}"} && return
    error=$(last_error)
    case $error in
      *ALREADY_EXISTS* | *"already exists"*)
        [ "$try" = 1 ] || return 0  # The try before came through after all.
        ours=""
        fail "$error; another asked for $TPU_NAME just now, take another name"
        ;;
      *"per minute"* | *UNAVAILABLE* | *DEADLINE_EXCEEDED* | *INTERNAL* | '') ;;
      *) fail "$error" ;;
    esac
    say "try $try of $TPU_RETRIES: ${error:-no answer in $TPU_CALL_S s}"
    [ "$try" = "$TPU_RETRIES" ] || pause "$TPU_RETRY_S"
  done
  fail "no answer after $TPU_RETRIES tries: $error"
}

# Returns when the slice is ACTIVE; ends the script on any other end.
await_active() {
  local state before="" deadline=$((SECONDS + TPU_WAIT_S))
  while :; do
    state=$(field queued-resources state.state) || exit 1
    [ "$state" = "$before" ] || say "$TPU_NAME is $state"
    before=$state
    case $state in
      ACTIVE) return ;;
      FAILED)
        fail "$(field queued-resources state.failedData.error.message)"
        ;;
      SUSPENDING | SUSPENDED)
        say "$TPU_NAME was taken back before it could be used; ask again."
        exit 6
        ;;
      DELETING | NOT_FOUND) fail "$TPU_NAME was deleted by somebody else" ;;
    esac
    if [ "$SECONDS" -ge "$deadline" ]; then
      say "$TPU_NAME is not ACTIVE after $TPU_WAIT_S s; raise TPU_WAIT_S, or" \
        "take another zone or --spot."
      exit 5
    fi
    pause "$TPU_POLL_S"
  done
}

state=$(field queued-resources state.state) || exit 1
[ "$state" = NOT_FOUND ] ||
  die "expected no $TPU_NAME, found one that is $state; delete.sh it first."
request
await_active
found=$(field tpu-vm 'state,networkEndpoints.len()') || exit 1
read -r state hosts <<< "$found"
if [ "$state" != READY ]; then
  say "$TPU_NAME was ACTIVE and its node is $state; ask again."
  exit 6
fi
say "$TPU_NAME is ACTIVE with $hosts hosts; it costs until delete.sh."
