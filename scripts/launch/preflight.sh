# Sourced by launchers; they define `dry_run` and `usage`.
# shellcheck shell=bash

die() {
  echo "Error: $*" >&2
  usage >&2
  exit 2
}

# Runs a command, or prints it.
run() {
  if [[ -n $dry_run ]]; then
    printf '%q ' "$@"
    echo
  else
    "$@"
  fi
}

# Compiles the step for devices that are not here, see scripts.compile, and ends
# the launch if it does not fit: preflight TARGET PYTHON ARGUMENTS OF trainers.train
preflight() {
  local command=("$2" -m scripts.compile --target "$1")
  shift 2
  while (($#)); do
    case $1 in
      --workdir | --seeds | --init_timeout_secs | --coordinator | --num_processes | --process_id) shift 2 ;;
      --workdir=* | --seeds=* | --init_timeout_secs=* | --coordinator=* | --num_processes=* | --process_id=*) shift ;;
      --allow_config_change* | --noallow_config_change) shift ;;
      *) command+=("$1") && shift ;;
    esac
  done
  run "${command[@]}" && return
  echo "Error: nothing was launched; see above." >&2
  exit 1
}
