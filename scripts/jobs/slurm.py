"""Job arrays for Slurm."""

import os
import shlex
from collections.abc import Sequence


def array(commands: Sequence[str], name: str, at_once: int | None) -> str:
  """Returns a script for sbatch that runs each command as a task of an array.

  At most `at_once` run at a time, from the current directory. Two minutes
  before its time limit a task is told to save. Submitted again, the script
  resumes. A preempted task is requeued (PreemptMode=REQUEUE) and resumes.
  """
  limit = f"%{at_once}" if at_once else ""
  lines = "\n".join(f"  {shlex.quote(command)}" for command in commands)
  return f"""#!/bin/bash
#SBATCH --job-name={shlex.quote(name)}
#SBATCH --array=0-{len(commands) - 1}{limit}
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
# Add --time, --partition, --gres and so on for your cluster.
cd {shlex.quote(os.getcwd())}
commands=(
{lines}
)
# Again for srun, which from Slurm 22.05 to 23.02 does not ask sbatch for it.
srun ${{SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}} \\
  bash -c "exec ${{commands[$SLURM_ARRAY_TASK_ID]}}" || exit
# Before 24.05, Slurm takes a run that saved within its GraceTime for one that
# is done. A job that is requeued loses its PreemptTime, so this does not go on
# for ever. For one of the tasks, SLURM_JOB_ID means the whole array.
task=${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID
version=$(scontrol --version)
case "${{version##* }} $(scontrol show job "$task")" in
  2[0-3].*PreemptTime=[0-9]*) scontrol requeue "$task" ;;
esac
"""
