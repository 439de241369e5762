#!/usr/bin/env bash
# Follows the last command of run.sh on every host, from its first line:
#   bash tpu_scripts/logs.sh --name=NAME --project=PROJECT --zone=ZONE
#
# Hardware: a slice on which run.sh started something. Cost: none of its own.
# Time: until the command ends; Ctrl-C ends the following, not the command.
# Expect: each line behind "[host]", once, also after a broken connection. A
#   host that is lost, or fails, is said in one line; the others then have
#   TPU_GRACE_S (300 s) to end.
# Exit codes: as run.sh.
# Environment: TPU_NAME, TPU_PROJECT, TPU_ZONE, TPU_GRACE_S; others in
#   settings.sh.
set -euo pipefail
source "$(dirname "$0")/settings.sh"

TPU_GRACE_S=${TPU_GRACE_S:-300}
while [ $# -gt 0 ]; do
  common_flag "$1" || die "expected a flag of --help, found '$1'."
  shift
done
check_common
find_hosts

# Follows one host; returns the exit code of its command, 255 where it is lost.
follow_host() {
  error_file=$scratch/error.$1
  local host=$1 seen=0 failures=0 code="" line number state
  while [ -z "$code" ]; do
    while IFS= read -r line; do
      case $line in
        line:*)
          number=${line#line:}
          number=${number%%:*}
          # gcloud repeats a command whose connection broke, from its start.
          [ "$number" -gt "$seen" ] || continue
          seen=$number failures=0
          printf '[%s] %s\n' "$host" "${line#line:*:}"
          ;;
        exit:*) code=${line#exit:} ;;
        *) printf '[%s] %s\n' "$host" "$line" ;;
      esac
    done < <(on_host "$host" "( $(verb follow "$seen") ) || echo exit:\$?" 0)
    [ -z "$code" ] || break
    failures=$((failures + 1))
    state=$(field tpu-vm state) || state=unknown
    if [ "$failures" -ge "$TPU_RETRIES" ] || [[ $state != @(READY|unknown) ]]
    then
      say "host $host is lost, $TPU_NAME is $state: $(ssh_error "$host")"
      return 255
    fi
    pause "$TPU_RETRY_S"
  done
  say "host $host ended with $code"
  return "$code"
}

# Each follower has a process group of its own, to be ended with its ssh.
set -m
pids=()
for ((host = 0; host < hosts; host++)); do
  follow_host "$host" &
  pids+=($!)
done
set +m

# shellcheck disable=SC2317  # The trap calls it.
end_following() {
  local pid
  exec 2> /dev/null
  for pid in ${pids[@]+"${pids[@]}"}; do kill -TERM -- "-$pid" || true; done
  rm -rf "$scratch"
}
trap end_following EXIT
trap 'say "the command goes on; run.sh --stop ends it."; exit 130' INT TERM HUP

worst=0 deadline=""
while [ "${#pids[@]}" -gt 0 ]; do
  for host in "${!pids[@]}"; do
    ! kill -0 "${pids[$host]}" 2> /dev/null || continue
    code=0
    wait "${pids[$host]}" || code=$?
    unset "pids[$host]"
    [ "$code" -le "$worst" ] || worst=$code
    [ "$code" = 0 ] || deadline=${deadline:-$((SECONDS + TPU_GRACE_S))}
  done
  if [ "${#pids[@]}" -gt 0 ] && [ -n "$deadline" ] &&
    [ "$SECONDS" -ge "$deadline" ]; then
    say "still running $TPU_GRACE_S s after the first failure: host" \
      "${!pids[*]}; run.sh --stop ends it, logs.sh follows it."
    break
  fi
  pause 0.2
done
exit "$worst"
