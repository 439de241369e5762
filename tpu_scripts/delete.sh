#!/usr/bin/env bash
# Deletes a slice with its queued resource and looks that nothing is left:
#   bash tpu_scripts/delete.sh --name=NAME --project=PROJECT --zone=ZONE
#
# Hardware: none. Cost: ends that of the slice; what is on its disks is lost, so
#   fetch.sh first.
# Time: some minutes, at most TPU_DELETE_S (1200 s).
# Expect: "nothing is left of NAME", also where there was nothing; exit code 1
#   and what is left where it could not be deleted.
# Environment: TPU_NAME, TPU_PROJECT, TPU_ZONE, TPU_DELETE_S; others in
#   settings.sh.
set -euo pipefail
source "$(dirname "$0")/settings.sh"

TPU_DELETE_S=${TPU_DELETE_S:-1200}
while [ $# -gt 0 ]; do
  common_flag "$1" || die "expected a flag of --help, found '$1'."
  shift
done
check_common

deadline=$((SECONDS + TPU_DELETE_S))
error="" again=""
while :; do
  queued=$(field queued-resources state.state) || exit 1
  node=$(field tpu-vm state) || exit 1
  [ "$queued/$node" != NOT_FOUND/NOT_FOUND ] || break
  if [ -n "$again" ] && [ "$SECONDS" -ge "$deadline" ]; then
    say "after $TPU_DELETE_S s the queued resource $TPU_NAME is $queued and" \
      "its node $node, AND MAY COST; run this again. ${error:-}"
    exit 1
  fi
  [ -z "$again" ] || pause "$TPU_POLL_S"
  again=1
  case $queued/$node in
    DELETING/* | NOT_FOUND/DELETING) ;;
    NOT_FOUND/*)
      tpus tpu-vm delete "$TPU_NAME" "${at[@]}" || error=$(last_error)
      ;;
    *)
      tpus queued-resources delete "$TPU_NAME" "${at[@]}" --force ||
        error=$(last_error)
      ;;
  esac
done
say "nothing is left of $TPU_NAME."
