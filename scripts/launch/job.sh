# Sourced by scripts that run long jobs which can be resumed.
# shellcheck shell=bash

fail() {
  echo "Error: $*" >&2
  exit 1
}

stop() {
  trap '' INT TERM
  kill "$job" 2>/dev/null || true
  wait "$job" || true
  echo
  echo "Stopped. Run the same command again to resume."
  exit 130
}

# Runs a command. The shell acts on a signal at once only while it waits for a
# background job, which in turn does not get the Ctrl-C of the terminal.
job() {
  "$@" &
  job=$!
  trap stop INT TERM
  wait "$job" || fail "some runs failed, see above. Run the same command to retry."
}
