#!/usr/bin/env bash
# Trains in a pod of Kubernetes, and exits with 0 only when the run is done.
#
#   scripts/launch/pod.sh /runs/b16 --config configs/augreg_i1k.py:variant=B/16
#
# First the run's folder, then other arguments of trainers.train, but no --seeds.
# A run that was told to stop has saved and exits with 0, which Kubernetes would
# take for done: here that is 143, with which GKE's JobSet and XPK start it again.
set -u

if (($# < 2)) || [[ $1 == -* || " $*" =~ ' -'-?(workdir|seeds) ]]; then
  sed -n '2,$ s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
python -m trainers.train --workdir "$@" &
run=$!
trap 'kill "$run"' TERM
while kill -0 "$run" 2>/dev/null; do
  wait "$run" # which a signal ends, too
done
wait "$run" || exit
[[ -e $1/done.json ]] || exit 143
