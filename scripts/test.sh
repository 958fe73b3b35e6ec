#!/usr/bin/env bash
# Runs the tests in .venv, which it makes if needed; $PYTHON and $VENV choose
# another interpreter and environment.
#
#   bash scripts/test.sh [--slow | --all] [ARGUMENTS OF PYTEST]
#
# With --slow also those marked so, which repeat at length what others test in
# small: every config's training, kills, long runs. With --all besides the tests
# that need timm, PyTorch, transformers, TensorFlow, nvImageCodec or pyarrow, in
# .venv-all; if one of these is missing they fail.
# From PyPI, PyTorch brings CUDA; to save its 3 GB:
# export PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

extras="test"
chosen=(-m "not slow")
if [ "${1:-}" = --slow ]; then
  shift
  chosen=()
elif [ "${1:-}" = --all ]; then
  shift
  chosen=()
  extras=test,convert,prepare,fast,hf
  export VENV=${VENV:-.venv-all} REQUIRE_EXTRAS=1
fi
bash scripts/venv.sh "$extras"
# A process per core; the tests of a file share its fixtures.
exec "${VENV:-.venv}/bin/python" -m pytest --numprocesses auto \
  --dist loadfile --no-loadscope-reorder ${chosen[@]+"${chosen[@]}"} "$@"
