# Sourced by launchers; they define `dry_run`.
# shellcheck shell=bash

# Compiles the step for devices that are not here, see scripts.compile, and ends
# the launch if it does not fit: preflight TARGET PYTHON ARGUMENTS OF trainers.train
preflight() {
  local command=("$2" -m scripts.compile --target "$1")
  shift 2
  while (($#)); do
    case $1 in
      --workdir) shift 2 ;;
      --workdir=*) shift ;;
      *) command+=("$1") && shift ;;
    esac
  done
  if [[ -n $dry_run ]]; then
    printf '%q ' "${command[@]}"
    echo
  elif ! "${command[@]}"; then
    echo "Error: nothing was launched; see above." >&2
    exit 1
  fi
}
