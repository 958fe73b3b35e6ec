#!/usr/bin/env bash
# Measures what this project claims about GPUs on this machine's, what matters
# most first, as much as fits into 25 minutes.
#
#   bash scripts/gpu_report.sh [--tiny] [--out OUT] [--minutes 25]
#
# Writes OUT/report.html (OUT is runs/gpu, of --tiny runs/gpu_tiny), and all
# numbers as JSON beside it. A part that fails is reported as such and the others
# go on; run it again to continue. Peers (timm with torch.compile, big_vision)
# are measured if they are there: --torch_python and --big_vision say where.
# --tiny is a trial in small that any CPU can do; python -m benchmarks.gpu_report
# --help lists all options.
#
# Installs what it needs into .venv, with the extras in EXTRAS (cuda13, or cuda12
# if it is there, fast, restart), unless PYTHON names an interpreter that has it all.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case " $* " in *" -h "* | *" --help "*) # not worth an installation
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' scripts/gpu_report.sh
  exit
  ;;
esac
python=${PYTHON:-${VENV:-.venv}/bin/python}
if [ -z "${PYTHON:-}" ]; then
  # Two CUDAs in one environment are in each other's way.
  cuda=cuda13
  ! "$python" -c 'import jax_cuda12_plugin' 2>/dev/null || cuda=cuda12
  default=$cuda,fast,restart
  [[ " $* " != *" --tiny "* ]] || default=
  bash scripts/venv.sh "${EXTRAS-$default}"
fi
exec "$python" -m benchmarks.gpu_report "$@"
