#!/usr/bin/env bash
# Runs the tests in .venv, which it makes if needed.
#
#   bash scripts/test.sh [ARGUMENTS OF PYTEST]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash scripts/venv.sh test
# A process per core; the tests of a file share what they have compiled.
exec .venv/bin/python -m pytest --numprocesses auto --dist loadfile "$@"
