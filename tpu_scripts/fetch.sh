#!/usr/bin/env bash
# Fetches a working directory from the hosts of a slice, without checkpoints:
#   bash tpu_scripts/fetch.sh --name=NAME --project=PROJECT --zone=ZONE \
#     --workdir=runs/NAME --to=fetched/NAME [--worker=0] [--checkpoints] \
#     [--replace]
#
# Hardware: a slice that is set up; also while a command runs there.
# Cost: traffic out of the zone. Time: that of the copy.
# Expect: fetched/NAME/worker_N, a folder per host, each put there as a whole;
#   one that exists is an error, or with --replace is replaced. --worker=N
#   fetches from one host, which is all where the hosts share their folder.
# Environment: TPU_NAME, TPU_PROJECT, TPU_ZONE; others in settings.sh.
set -euo pipefail
source "$(dirname "$0")/settings.sh"

WORKDIR="" TO="" WORKER=all checkpoints="" replace=""
while [ $# -gt 0 ]; do
  case $1 in
    --workdir=*) WORKDIR=${1#*=} ;;
    --to=*) TO=${1#*=} ;;
    --worker=*) WORKER=${1#*=} ;;
    --checkpoints) checkpoints=checkpoints ;;
    --replace) replace=1 ;;
    *) common_flag "$1" || die "expected a flag of --help, found '$1'." ;;
  esac
  shift
done
check_common
expect --workdir WORKDIR '[^-].*' runs/first
expect --to TO '[^-].*' fetched/first
expect --worker WORKER 'all|[0-9]+' 0
find_hosts
wanted=$WORKER
[ "$WORKER" != all ] || wanted=$(seq 0 $((hosts - 1)))
[ "$WORKER" = all ] || [ "$WORKER" -lt "$hosts" ] ||
  die "expected --worker below $hosts, found $WORKER; name another."
for host in $wanted; do
  [ -n "$replace" ] || [ ! -e "$TO/worker_$host" ] ||
    die "expected no $TO/worker_$host, found one; name another --to," \
      "or --replace it."
done

# Fetches from one host: packed there, copied, unpacked beside, renamed.
fetch_from() {
  local host=$1 token pack folder=$TO/worker_$1
  token=fetch-$(date +%Y%m%dT%H%M%S)-$$
  pack=$scratch/$host.tar.gz
  # shellcheck disable=SC2086  # $checkpoints is a word or nothing.
  ask "$host" "$(verb pack "$token" "$WORKDIR" $checkpoints)" 0 || return
  tpus tpu-vm scp "$TPU_NAME:jaxrl_llm/packs/$token.tar.gz" "$pack" \
    "${at[@]}" --worker="$host" > /dev/null || {
    say "cannot copy from host $host: $(last_error)"
    return 1
  }
  ask "$host" "$(verb unpack_away "$token")" "$TPU_CALL_S" || return
  rm -rf "$folder.new" "$folder.old" && mkdir -p "$folder.new" &&
    tar -xzf "$pack" -C "$folder.new" || return
  [ ! -e "$folder" ] || mv "$folder" "$folder.old" || return
  mv "$folder.new" "$folder" || return
  rm -rf "$folder.old"
  say "host $host: $folder"
}

worst=0
for host in $wanted; do
  code=0
  fetch_from "$host" || code=$?
  [ "$code" = 0 ] || say "host $host: $WORKDIR was not fetched."
  [ "$code" -le "$worst" ] || worst=$code
done
exit "$worst"
