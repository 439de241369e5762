#!/usr/bin/env bash
# Copies this checkout to every host of a slice and sets up its environment:
#   bash tpu_scripts/setup.sh --name=NAME --project=PROJECT --zone=ZONE
#
# Hardware: a READY slice (create.sh). What is committed goes there (git archive
#   of HEAD), nothing else. Cost: that of the slice.
# Time: some minutes the first time; the environment is made again only where
#   setup.py or the lock files changed.
# Expect: "[host] … is set up with COMMIT" for each host. Run it again after a
#   failure or a new commit; a command that is running keeps its own checkout.
# Environment: TPU_NAME, TPU_PROJECT, TPU_ZONE, TPU_SETUP_S (3600 s); others in
#   settings.sh.
set -euo pipefail
source "$(dirname "$0")/settings.sh"

TPU_SETUP_S=${TPU_SETUP_S:-3600}
while [ $# -gt 0 ]; do
  common_flag "$1" || die "expected a flag of --help, found '$1'."
  shift
done
check_common
cd "$(dirname "$0")/.."
commit=$(git rev-parse --short=12 HEAD) ||
  die "expected a git checkout with a commit, found none; clone the repository."
git diff --quiet HEAD || say "uncommitted changes are not copied."
find_hosts

archive=jaxrl_llm-$commit.tar.gz
git archive --format=tar.gz --output="$scratch/$archive" HEAD
tpus tpu-vm scp "$scratch/$archive" "$TPU_NAME:" "${at[@]}" --worker=all \
  > /dev/null || {
  say "cannot copy to $TPU_NAME: $(last_error)"
  exit 1
}
# The checkout appears by rename, with links to what all checkouts share.
command="set -e; new=jaxrl_llm/$commit.new
mkdir -p jaxrl_llm/runs jaxrl_llm/.cache
if [ ! -e jaxrl_llm/$commit ]; then
  rm -rf \$new; mkdir \$new; tar -xzf $archive -C \$new
  ln -s ../runs ../.cache ../.venv \$new/; mv \$new jaxrl_llm/$commit
fi
bash jaxrl_llm/$commit/tpu_scripts/on_host.sh setup
rm -f $archive"
code=0
ask_all "$command" "$TPU_SETUP_S" || code=$?
[ "$code" = 0 ] || say "not every host is set up; run this again."
exit "$code"
