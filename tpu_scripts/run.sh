#!/usr/bin/env bash
# Runs the same command on every host of a slice, in the checkout that setup.sh
# put there, and follows it:
#   bash tpu_scripts/run.sh --name=NAME --project=PROJECT --zone=ZONE -- \
#     python -m jaxrl_llm run --config=configs/NAME.py --workdir=runs/NAME
#   bash tpu_scripts/run.sh … --stop
#
# Hardware: a slice that is set up. Cost: that of the slice, also while nothing
#   runs. Time: that of the command.
# Expect: the output of each host behind "[host]". The command goes on when the
#   connection or this script ends; logs.sh follows it again, --stop sends it
#   SIGTERM. A host that is down is said in one line and nothing is started.
# Exit codes: the largest of the hosts', as the command gave them (a run that
#   was preempted has one of its own: the same command goes on); 255 a host that
#   cannot be reached, 137 a command that left no code, 2 a wrong argument, 3
#   not set up or still running.
# Environment: TPU_NAME, TPU_PROJECT, TPU_ZONE, TPU_GRACE_S; others in
#   settings.sh.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/settings.sh"

stop=""
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  case $1 in
    --stop) stop=1 ;;
    *) common_flag "$1" || die "expected a flag or '--', found '$1'." ;;
  esac
  shift
done
[ $# = 0 ] || shift
[ $# -gt 0 ] || [ -n "$stop" ] ||
  die "expected '-- COMMAND …', found no command; give one."
check_common
find_hosts

if [ -n "$stop" ]; then
  ask_all "$(verb stop)" "$TPU_CALL_S"
  exit
fi
code=0
ask_all "$(verb check)" "$TPU_CALL_S" || code=$?
if [ "$code" != 0 ]; then
  say "nothing was started; see above."
  exit "$code"
fi
ask_all "$(verb start "$(date +%Y%m%dT%H%M%S)-$$" "$@")" "$TPU_CALL_S" ||
  code=$?
if [ "$code" != 0 ]; then
  say "not every host started; the others are told to stop."
  ask_all "$(verb stop)" "$TPU_CALL_S" || true
  exit "$code"
fi
rm -rf "$scratch"
exec bash "$here/logs.sh" --name="$TPU_NAME" --project="$TPU_PROJECT" \
  --zone="$TPU_ZONE"
