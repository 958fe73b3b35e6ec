#!/usr/bin/env bash
# Makes .venv, or $VENV, with this checkout and its pinned requirements.
#
#   bash scripts/venv.sh [EXTRAS]      extras of setup.py, such as test,wandb
#
# $PYTHON names the interpreter; without it the newest on the PATH is taken.
# Does nothing, and needs no network, while neither setup.py nor
# constraints.txt has changed since the last time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

extras=${1:-}
venv=${VENV:-.venv}
# A moved checkout needs a new installation: the environment holds its path.
inputs=$(cat setup.py constraints.txt <(pwd) | cksum | tr ' ' -)
stamp=$venv/installed/$inputs/${extras:-base}

# shellcheck source=/dev/null
source scripts/launch/job.sh

# Prints the first interpreter that is new enough and can make environments.
# Trying beats looking: a name on the PATH may be a launcher of nothing.
find_python() {
  local name version found_old='' found_bare=''
  for name in ${PYTHON:-python3.13 python3.12 python3.11 python3 python}; do
    version=$("$name" -c 'import platform; print(platform.python_version())' \
      2>/dev/null) || continue
    if ! "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
      found_old+="; $name is $version"
    elif ! "$name" -c 'import ensurepip, venv' 2>/dev/null; then
      found_bare=$version
    else
      command -v "$name"
      return
    fi
  done
  if [ -n "$found_bare" ]; then
    fail "Python $found_bare comes without the modules venv and ensurepip." \
      "On Debian and Ubuntu: sudo apt install python${found_bare%.*}-venv"
  fi
  fail "Found no Python >= 3.11 on the PATH${found_old:-; nor any other}." \
    "Get one from your package manager, python.org or pyenv."
}

if [ -n "${PYTHON:-}" ] && [ -e "$venv/bin/python" ]; then
  wanted=$("$PYTHON" --version) has=$("$venv/bin/python" --version)
  [ "$wanted" = "$has" ] ||
    fail "$venv has $has and \$PYTHON is $wanted. Give another VENV."
fi
if [ -e "$stamp" ] && "$venv/bin/python" -c '' 2>/dev/null; then
  exit
fi

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  [ ! -e "$venv" ] || [ -e "$venv/pyvenv.cfg" ] ||
    fail "$venv exists and is no virtual environment. Give another VENV."
  python=$(find_python)
  echo "Making $venv with $("$python" --version) ($python)"
  "$python" -m venv --clear "$venv"
fi

# Whatever was installed from other inputs is about to change.
[ -d "$(dirname "$stamp")" ] || rm -rf "$venv/installed"
echo "Installing into $venv; the first time takes some minutes ..."
"$venv/bin/python" -m pip install --quiet --quiet --disable-pip-version-check \
  --constraint constraints.txt --editable ".${extras:+[$extras]}" ||
  fail "pip could not install the requirements; its message is above."
mkdir -p "$(dirname "$stamp")"
touch "$stamp"
