#!/usr/bin/env bash
# Submits a training run to Slurm: one process per node, each with all its GPUs.
#
#   scripts/launch/slurm.sh --nodes 4 --gpus 8 --time 24:00:00 --dry_run -- \
#     --config configs/augreg_i1k.py:variant=B/16 --workdir /shared/runs/b16
#
# What follows -- goes to trainers.train. Two minutes before the time is up, or
# when the job is preempted, the run gets SIGTERM, saves and ends; a preempted
# job is requeued (PreemptMode=REQUEUE) and resumes.
set -euo pipefail
# shellcheck source=/dev/null
source "$(dirname "${BASH_SOURCE[0]}")/preflight.sh"

usage() {
  cat <<'END'
usage: scripts/launch/slurm.sh [options] -- ARGUMENTS OF trainers.train
  --nodes N          nodes (1)
  --gpus N           GPUs of each node (8)
  --cpus N           CPU cores of each node (all that its GPUs come with)
  --time HH:MM:SS    time limit (24:00:00)
  --partition NAME   partition of the cluster
  --account NAME     whom to charge
  --name NAME        name of the job (dpn)
  --venv DIR         virtual environment (.venv)
  --logs DIR         folder of the logs, which must exist on the nodes (.)
  --preflight TARGET compile first, here, for these devices: h100:32
  --dry_run          print what would be run
END
}

nodes=1 gpus=8 cpus='' time=24:00:00 partition='' account='' name=dpn
venv=.venv logs=. preflight='' dry_run=''
# shellcheck disable=SC2034  # `run` reads dry_run
while (($#)); do
  case $1 in
    --nodes | --gpus | --cpus | --time | --partition | --account | --name | \
      --venv | --logs | --preflight)
      (($# > 1)) || die "$1 needs a value."
      printf -v "${1#--}" '%s' "$2"
      shift 2
      ;;
    --dry_run) dry_run=1 && shift ;;
    --help) usage && exit ;;
    --) shift && break ;;
    *) die "unknown option $1; arguments of trainers.train follow --." ;;
  esac
done
[[ $nodes =~ ^[1-9][0-9]*$ ]] || die "--nodes $nodes: expected a number."
[[ $gpus =~ ^[1-9][0-9]*$ ]] || die "--gpus $gpus: expected a number."
[[ " $* " == *' --workdir'* ]] || die "give --workdir after --, on a disk that all nodes share."

# Again for srun, which from Slurm 22.05 to 23.02 does not ask sbatch for it.
printf -v train '%q ' srun --kill-on-bad-exit=1 \
  ${cpus:+"--cpus-per-task=$cpus"} "$venv/bin/python" -m trainers.train "$@"
# Before 24.05, Slurm takes a run that saved within its GraceTime for one that is
# done. A job that is requeued loses its PreemptTime, so this does not go on for
# ever.
# shellcheck disable=SC2016  # expanded in the job
printf -v requeue '%s' 'version=$(scontrol --version); ' \
  'case "${version##* } $(scontrol show job "$SLURM_JOB_ID")" in ' \
  '2[0-3].*PreemptTime=[0-9]*) scontrol requeue "$SLURM_JOB_ID" ;; esac'
command=(
  sbatch "--job-name=$name" "--nodes=$nodes" --ntasks-per-node=1
  "--gpus-per-node=$gpus" "--time=$time" --signal=TERM@120 --requeue
  --open-mode=append "--output=$logs/%x-%j.log"
)
[[ -z $cpus ]] || command+=("--cpus-per-task=$cpus")
[[ -z $partition ]] || command+=("--partition=$partition")
[[ -z $account ]] || command+=("--account=$account")
command+=("--wrap=${train% } || exit; $requeue")

[[ -z $preflight ]] || preflight "$preflight" "$venv/bin/python" "$@"
run "${command[@]}"
