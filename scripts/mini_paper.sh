#!/usr/bin/env bash
# The paper in miniature: its main comparisons on small real images, in half an
# hour on two cores, as tables, figures and one page.
#
#   bash scripts/mini_paper.sh [--data_dir DIR] [--out DIR] [--steps N] [--jobs N]
#
# Trains the stems of Table 6 (so base and DPN of Table 1) and the placements of
# Figure 1, then transfers base and DPN by VTAB's rules (Table 3). The images are
# CIFAR-10's if --data_dir holds it (TFDS's cifar10 or a cifar10_jpeg),
# and those that come with scikit-learn otherwise.
#
# Run it again to resume. Needs Python >= 3.11 and installs the
# rest into .venv, unless PYTHON names an interpreter that has it all.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

data_dir=
out=runs/mini
steps=600
jobs=2

# shellcheck source=/dev/null
source scripts/launch/job.sh

while [ $# -gt 0 ]; do
  [ $# -gt 1 ] || fail "$1 needs a value; see the top of scripts/mini_paper.sh."
  case $1 in
    --data_dir) data_dir=$2 ;;
    --out) out=$2 ;;
    --steps) steps=$2 ;;
    --jobs) jobs=$2 ;;
    *) fail "Unknown option $1. Known: --data_dir, --out, --steps, --jobs." ;;
  esac
  shift 2
done
[ -z "$data_dir" ] || [ -d "$data_dir" ] || fail "There is no folder $data_dir."

python=${PYTHON:-${VENV:-.venv}/bin/python}
[ -n "${PYTHON:-}" ] || bash scripts/venv.sh

data=digits
label="scikit-learn's digits"
task=photos
dir=$out/data
for name in cifar10_jpeg cifar10; do
  if compgen -G "${data_dir:-/nowhere}/$name/*/dataset_info.json" >/dev/null; then
    data=$name
    label=CIFAR-10
    task=digits
    dir=$data_dir
    break
  fi
done
if [ -n "$data_dir" ] && [ "$data" = digits ]; then
  echo "$data_dir holds neither cifar10_jpeg nor cifar10: taking digits."
fi
# A folder keeps to its data, so that no table mixes two.
mkdir -p "$out"
if [ -e "$out/data.txt" ] && [ "$(cat "$out/data.txt")" != "$data $steps" ]; then
  fail "$out was begun with other data or steps ($(cat "$out/data.txt"), now" \
    "$data $steps). Give another --out, or the same --data_dir and --steps."
fi
echo "$data $steps" >"$out/data.txt"

sweep() {
  job "$python" -m scripts.sweep --config "$1" --out "$2" --jobs "$jobs"
}

"$python" -m scripts.mini_data "$out/data"
echo "1/3 Stems and placements, trained on $label:"
sweep "configs/mini.py:data=$data,data_dir=$dir,steps=$steps" "$out/stems"
echo "2/3 Transfers to $task:"
init="$out/stems/{stem_ln}-s{seed}/params.safetensors"
sweep "configs/mini_vtab.py:data=$task,data_dir=$out/data,init=$init" "$out/transfers"
"$python" -m scripts.select_best "$out/transfers" --test
echo "3/3 Tables, figures, report:"
"$python" -m scripts.tables "$out/stems" "$out/transfers" --format md \
  -o "$out/tables.md"
"$python" -m scripts.figures "$out/stems" --figure all -o "$out/figures"
"$python" -m scripts.report "$out/stems" "$out/transfers" -o "$out/report.html" \
  --title "Dual PatchNorm in miniature" \
  --note "A miniature of arXiv 2302.01327: a ViT of 0.15M parameters, trained for \
$steps steps on $label ($((steps * 128)) images of 32×32 pixels) and transferred \
to 800 images of $task. Its numbers show how the paper's comparisons are made. \
They can neither confirm nor refute the paper's claims, which stand beside what \
these runs say of them for orientation."
echo "Done. The paper in miniature: $out/report.html"
