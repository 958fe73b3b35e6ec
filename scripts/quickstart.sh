#!/usr/bin/env bash
# Compares ViT with and without Dual PatchNorm on scanned digits, in minutes.
#
#   bash scripts/quickstart.sh
#
# Needs Python >= 3.11; installs the rest into .venv. Started again, it goes on
# where it was. Results: the table it prints and runs/quickstart/report.html.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

root=runs/quickstart
arms=(none dpn)
seeds=(0 1 2)

# Only while waiting for a background job does the shell act on Ctrl-C at once;
# the job itself does not hear of it.
stop() {
  trap '' INT TERM
  kill "$job" 2>/dev/null || true
  wait "$job" || true
  echo
  echo "Stopped. The same command goes on from here."
  exit 130
}

bash scripts/venv.sh
mkdir -p "$root"
job=
trap stop INT TERM
for seed in "${seeds[@]}"; do
  for arm in "${arms[@]}"; do
    run=$root/$arm-$seed
    echo "stem_ln=$arm, seed $seed; details go to $run.log"
    .venv/bin/python -m trainers.train --workdir "$run" \
      --config "configs/digits.py:stem_ln=$arm,seed=$seed" >>"$run.log" 2>&1 &
    job=$!
    if ! wait "$job"; then
      tail -n 20 "$run.log" >&2
      exit 1
    fi
    echo "  $(tail -n 1 "$run.log")"
  done
done
.venv/bin/python -m scripts.quickstart "$root"
