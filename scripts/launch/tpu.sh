#!/usr/bin/env bash
# Gets a Cloud TPU slice from the queue and trains on all its workers.
#
#   scripts/launch/tpu.sh --name dpn --zone us-east5-a --type v5litepod-64 \
#     --version v2-alpha-tpuv5-lite --bucket my-data --dry_run -- \
#     --config configs/augreg_i1k.py:variant=B/16 --workdir /mnt/runs/b16
#
# Arguments after -- go to trainers.train. Run again after that has ended, it uses
# the existing slice, copies the code again and the run resumes. --delete releases
# the slice.
set -euo pipefail
# shellcheck source=/dev/null
source "$(dirname "${BASH_SOURCE[0]}")/preflight.sh"

usage() {
  cat <<'END'
usage: scripts/launch/tpu.sh [options] -- ARGUMENTS OF trainers.train
  --name NAME        name of the queued resource and of its node (dpn)
  --zone ZONE        zone, required
  --type TYPE        accelerator type, e.g. v5litepod-64, required
  --version VERSION  runtime version, e.g. v2-alpha-tpuv5-lite, required
  --project ID       project (default: gcloud's)
  --spot             cheaper, may be taken away at any time
  --bucket NAME      bucket to mount at ~/data, read-only, as TFDS_DATA_DIR
  --preflight TARGET compile first, here, for these devices: v5e:8x8
  --delete           delete the slice instead of training
  --dry_run          print what would be run
END
}

name=dpn zone='' type='' version='' project='' spot='' bucket=''
preflight='' delete='' dry_run=''
while (($#)); do
  case $1 in
    --name | --zone | --type | --version | --project | --bucket | --preflight)
      (($# > 1)) || die "$1 needs a value."
      printf -v "${1#--}" '%s' "$2"
      shift 2
      ;;
    --spot | --delete | --dry_run) printf -v "${1#--}" 1 && shift ;;
    --help) usage && exit ;;
    --) shift && break ;;
    *) die "unknown option $1; arguments of trainers.train follow --." ;;
  esac
done
[[ -n $zone ]] || die "--zone is missing."
where=("--zone=$zone")
[[ -z $project ]] || where+=("--project=$project")
queued=(gcloud compute tpus queued-resources)

on_all_workers() {
  run gcloud compute tpus tpu-vm ssh "$name" "${where[@]}" --worker=all \
    "--command=$1"
}

state() {
  "${queued[@]}" describe "$name" "${where[@]}" \
    '--format=value(state.state)' 2>/dev/null || echo ABSENT
}

if [[ -n $delete ]]; then
  run "${queued[@]}" delete "$name" "${where[@]}" --force --quiet
  exit
fi
[[ -n $type && -n $version ]] || die "--type and --version are missing."
[[ " $* " == *' --workdir'* ]] || die "give --workdir after --, where all workers can write."

[[ -z $preflight ]] || preflight "$preflight" python3 "$@"
now=ABSENT
[[ -n $dry_run ]] || now=$(state)
if [[ $now == ABSENT ]]; then
  run "${queued[@]}" create "$name" "--node-id=$name" "${where[@]}" \
    "--accelerator-type=$type" "--runtime-version=$version" ${spot:+--spot}
fi
absent=0 # times in a row: a failing network must not end hours of waiting
while [[ -z $dry_run && $now != ACTIVE ]]; do
  now=$(state)
  echo "$(date +%T) $name is $now"
  if [[ $now == ABSENT ]]; then ((++absent)); else absent=0; fi
  if [[ $now == @(FAILED|SUSPENDED) || $absent == 10 ]]; then
    echo "Error: $name is $now; ${queued[*]} describe $name ${where[*]} may say" \
      "why. Delete it with --delete, then try again." >&2
    exit 1
  fi
  [[ $now == ACTIVE ]] || sleep 30
done

# A second run on the slice would end both: its processes join the first one's.
on_all_workers '! pgrep -f "[.]venv/bin/python -m trainers[.]train" >/dev/null ||
  { echo "Error: a run is training here. Follow it with tail -F ~/dpn/train.log, or stop it first." >&2; exit 1; }'
archive=$(mktemp --suffix=.tar.gz)
trap 'rm -f "$archive"' EXIT
run git archive --format=tar.gz "--output=$archive" HEAD
run gcloud compute tpus tpu-vm scp "$archive" "$name:dpn.tar.gz" \
  "${where[@]}" --worker=all
# uv brings the Python that setup.py asks for: the runtimes may have an older one.
# shellcheck disable=SC2016  # expanded there
on_all_workers 'mkdir -p dpn && tar -xzf dpn.tar.gz -C dpn && cd dpn &&
  export PATH="$HOME/.local/bin:$PATH" &&
  (command -v uv >/dev/null || curl -LsSf https://astral.sh/uv/install.sh | sh) &&
  uv venv -q --allow-existing --seed --python 3.11 .venv &&
  .venv/bin/pip install -q -c constraints.txt -e ".[tpu]"'
if [[ -n $bucket ]]; then
  # shellcheck disable=SC2016  # expanded there
  printf -v mount 'mkdir -p data && { mountpoint -q data || gcsfuse -o ro --implicit-dirs %q data; } &&
    there=$(findmnt -no SOURCE data) && { [[ $there == %q ]] ||
    { echo "Error: ~/data is a mount of $there. First umount it." >&2; exit 1; }; }' "$bucket" "$bucket"
  on_all_workers "$mount"
fi
printf -v train '%q ' "$@"
# Training outlives this terminal; run again, this follows the new run's log.
train="${bucket:+TFDS_DATA_DIR=\$HOME/data }nohup .venv/bin/python -m trainers.train ${train% }"
train+=" < /dev/null >> train.log 2>&1"
on_all_workers "cd dpn && { $train & tail -n 0 -F --pid=\$! train.log; wait \$!; }"
