"""Launchers: what they would run, and what is wrong with them."""

import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import time

import pytest
import yaml

from dpn.scripts.jobs import slurm

SCRIPTS = pathlib.Path(__file__).parent
SHELL = [*sorted(SCRIPTS.parent.rglob("*.sh")), SCRIPTS.parents[1] / ".ci/run"]
TRAIN = ["--config", "configs/digits.py:stem_ln=dpn", "--workdir", "/a disk/x"]
TPU = ["--zone", "us-east5-a", "--type", "v5litepod-64", "--version", "v2"]


def _run(script, *args):
  return subprocess.run(
    ["bash", str(SCRIPTS / script), *args],
    capture_output=True,
    text=True,
    cwd=SCRIPTS.parents[1],
  )


def _commands(script, *args):
  done = _run(script, *args, "--dry_run", "--", *TRAIN)
  assert done.returncode == 0, done.stderr
  # A command's line breaks are within its quotes.
  text = done.stdout.replace("\n  ", " ")
  return [shlex.split(line) for line in text.splitlines()]


class _Stubs:
  """Programs that do nothing but note how they were called, and a `body`."""

  def __init__(self, folder):
    self._folder, self._log = folder, folder / "calls"

  def add(self, name, body=""):
    note = f"printf '%q ' {name} \"$@\" >>{self._log}; echo >>{self._log}"
    path = self._folder / name
    path.write_text(f"#!/bin/bash\n{note}\n{body}\n")
    path.chmod(0o755)

  def calls(self, name):
    lines = map(shlex.split, self._log.read_text().splitlines())
    return [line[1:] for line in lines if line[0] == name]


@pytest.fixture(name="stubs")
def _stubs(tmp_path, monkeypatch):
  """Returns _Stubs that come first in PATH."""
  folder = tmp_path / "stubs"
  folder.mkdir()
  monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
  return _Stubs(folder)


def _run_job(stubs, script, **env):
  """Runs what slurm.sh or a job array submits, with `env` as Slurm sets it."""
  if script == "slurm.sh":
    # sbatch makes a script of sh from what it is to wrap.
    stubs.add("sbatch", 'for last; do :; done; sh -c "${last#--wrap=}"')
    command = ["bash", SCRIPTS / script, "--cpus", "6", "--", *TRAIN]
  else:
    lines = [shlex.join(["train", *TRAIN]), "train another"]
    text = slurm.array(lines, "sweep", None)
    command = ["bash", "-c", text]
  env = os.environ | env
  return subprocess.run(command, capture_output=True, text=True, env=env)


@pytest.mark.parametrize("script", ["slurm.sh", "tpu.sh"])
def test_preflight_comes_first(script, tmp_path):
  options = ["--preflight", "v5e:8x8", *(TPU if script == "tpu.sh" else ())]
  first, *_ = _commands(script, *options)
  words = ["-m", "scripts.compile", "--target", "v5e:8x8", *TRAIN[:2]]
  assert first[1:] == words
  own = ["--allow_config_change", "--seeds", "0,1", "--init_timeout_secs=9"]
  own += ["--num_processes", "2", "--coordinator=h:1", "--process_id=0"]
  done = _run(script, *options, "--dry_run", "--", *TRAIN, *own)
  assert shlex.split(done.stdout.partition("\n")[0])[1:] == words
  (tmp_path / "bin").mkdir()
  (tmp_path / "bin" / "python").symlink_to(shutil.which("false"))
  done = _run("slurm.sh", *options[:2], "--venv", str(tmp_path), "--", *TRAIN)
  assert (done.returncode, done.stdout) == (1, "")
  assert done.stderr == "Error: nothing was launched; see above.\n"


@pytest.mark.parametrize("script", ["slurm.sh", "array"])
def test_srun_gets_the_cores(stubs, script):
  stubs.add("srun")
  stubs.add("scontrol")
  env = {"SLURM_CPUS_PER_TASK": "6", "SLURM_ARRAY_TASK_ID": "0"}
  done = _run_job(stubs, script, **env)
  assert done.returncode == 0, done.stderr
  [call] = stubs.calls("srun")
  assert "--cpus-per-task=6" in call


@pytest.mark.parametrize(
  ("version", "preempted", "status", "requeued"),
  [
    ("slurm 23.11.4", "2026-11-23T09:00:00", 0, True),
    ("slurm-wlm 21.08.5", "2026-11-23T09:00:00", 0, True),
    ("slurm 23.11.4", "None", 0, False),  # done, or out of time
    ("slurm 23.11.4", "2026-11-23T09:00:00", 1, False),  # failed
    ("slurm 24.05.0", "2026-11-23T09:00:00", 0, False),  # requeued by Slurm
  ],
)
@pytest.mark.parametrize("script", ["slurm.sh", "array"])
def test_requeue(stubs, script, version, preempted, status, requeued):
  stubs.add("srun", f"exit {status}")
  stubs.add(
    "scontrol",
    f"""case $1 in
      --version) echo {version} ;;
      show) echo "JobId=37 Comment=was in 22.05
   PreemptEligibleTime=2026-11-23T08:00:00 PreemptTime={preempted}" ;;
    esac""",
  )
  ids = {"SLURM_JOB_ID": "37"}
  if script == "array":
    ids |= {"SLURM_ARRAY_JOB_ID": "36", "SLURM_ARRAY_TASK_ID": "1"}
  done = _run_job(stubs, script, **ids)
  assert (done.returncode, done.stderr) == (status, "")
  job = {"slurm.sh": "37", "array": "36_1"}[script]
  calls = stubs.calls("scontrol")
  assert ["requeue", job] in calls if requeued else "requeue" not in str(calls)
  assert status or ["show", "job", job] in calls


def test_an_array_without_a_number_of_cores(stubs, monkeypatch):
  monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
  stubs.add("srun")
  stubs.add("scontrol")
  _run_job(stubs, "array", SLURM_ARRAY_TASK_ID="0")
  command = shlex.join(["train", *TRAIN])
  assert stubs.calls("srun") == [["bash", "-c", f"exec {command}"]]


@pytest.mark.parametrize("script", SHELL, ids=lambda path: path.name)
def test_shellcheck(script):
  beside_python = str(pathlib.Path(sys.executable).parent)
  shellcheck = shutil.which("shellcheck") or shutil.which(
    "shellcheck", path=beside_python
  )
  assert shellcheck, "shellcheck is missing: pip install -e '.[test]'"
  done = subprocess.run([shellcheck, script], capture_output=True, text=True)
  assert done.returncode == 0, done.stdout


def test_slurm():
  args = ["--nodes", "4", "--time", "1:00:00", "--cpus", "6"]
  [command] = _commands("slurm.sh", *args)
  assert command[0] == "sbatch"
  assert {"--nodes=4", "--ntasks-per-node=1", "--time=1:00:00"} <= set(command)
  assert {"--signal=TERM@120", "--requeue"} <= set(command)
  assert "--cpus-per-task=6" in command
  srun, _ = command[-1].removeprefix("--wrap=").split(" || exit; ")
  wrapped = shlex.split(srun)
  assert wrapped[0] == "srun"
  assert wrapped[wrapped.index("trainers.train") + 1 :] == TRAIN


def test_tpu():
  *first, last = _commands("tpu.sh", *TPU, "--spot", "--bucket", "data")
  create = "gcloud compute tpus queued-resources create"
  assert " ".join(first[0][:5]) == create
  assert {"--accelerator-type=v5litepod-64", "--spot"} <= set(first[0])
  assert any("pgrep" in part for part in first[1])  # no second run on a slice
  assert any("gcsfuse" in part for part in first[-1])
  assert " ".join(last[:5]) == "gcloud compute tpus tpu-vm ssh"
  assert "--worker=all" in last
  remote = shlex.split(last[-1].removeprefix("--command="))
  start = remote.index("trainers.train") + 1
  assert remote[start : start + len(TRAIN)] == TRAIN
  assert {"nohup", "tail"} <= {*remote}


def test_a_python_for_the_tpu(stubs, tmp_path):
  home, folder = tmp_path / "home", tmp_path / "stubs"
  home.mkdir()
  for name in ("git", "tar", "pip", "python"):
    stubs.add(name)
  stubs.add("brought", f"mkdir -p .venv; ln -sfn {folder} .venv/bin")
  bring = "mkdir -p ~/.local/bin; ln -s {}/brought ~/.local/bin/uv"
  stubs.add("curl", f"echo '{bring.format(folder)}'")
  stubs.add(
    "gcloud",
    f"""for last; do :; done
    export HOME={home} PATH={folder}:/usr/bin:/bin
    cd ~
    case "$*" in
      *describe*) echo ACTIVE ;;
      *ssh*) bash -c "${{last#--command=}}" ;;
    esac""",
  )
  command = ["bash", SCRIPTS / "tpu.sh", *TPU, "--", *TRAIN]
  for times in (1, 2):
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    venvs, installs = stubs.calls("brought"), stubs.calls("pip")
    assert len(venvs) == len(installs) == times
  assert venvs[-1][-3:] == ["--python", "3.11", ".venv"]
  assert installs[-1][-1] == ".[tpu]"
  assert len(stubs.calls("curl")) == 1
  assert stubs.calls("python")[-1] == ["-m", "trainers.train", *TRAIN]


def test_a_tpu_that_is_deleted_while_it_is_waited_for(stubs):
  stubs.add("sleep")
  stubs.add("gcloud", 'case "$*" in *describe*) exit 1 ;; esac')
  command = ["bash", SCRIPTS / "tpu.sh", *TPU, "--", *TRAIN]
  done = subprocess.run(command, capture_output=True, text=True, timeout=60)
  assert done.returncode == 1
  assert "Error: dpn is ABSENT; gcloud" in done.stderr
  assert len(stubs.calls("sleep")) == 9


@pytest.mark.parametrize(
  ("script", "args", "message"),
  [
    ("slurm.sh", ["--node", "2"], "unknown option --node"),
    ("slurm.sh", ["--nodes", "two"], "--nodes two: expected a number"),
    ("slurm.sh", ["--nodes"], "--nodes needs a value"),
    ("slurm.sh", ["--", "--config", "x"], "give --workdir"),
    ("tpu.sh", [], "--zone is missing"),
    ("tpu.sh", ["--zone", "z", "--", "--workdir", "/x"], "--type and"),
  ],
)
def test_mistakes(script, args, message):
  done = _run(script, "--dry_run", *args)
  assert done.returncode == 2
  assert f"Error: {message}" in done.stderr
  assert "usage: " in done.stderr


def test_a_pod_for_every_host_of_the_slice():
  jobset = yaml.safe_load((SCRIPTS / "gke.yaml").read_text())
  [job] = jobset["spec"]["replicatedJobs"]
  spec = job["template"]["spec"]
  pod = spec["template"]["spec"]
  rows, cols = map(
    int, pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x")
  )
  chips = pod["containers"][0]["resources"]["limits"]["google.com/tpu"]
  assert spec["parallelism"] == spec["completions"] == rows * cols // chips
  assert spec["backoffLimit"] == 0
  command, args = (pod["containers"][0][key] for key in ("command", "args"))
  assert command == ["bash", "scripts/launch/pod.sh"]
  assert [arg.split("=")[0] for arg in args] == ["/runs/b16", "--config"]
  mounts = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
  assert mounts == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize(
  ("body", "status"),
  [("exit 3", 3), ("exit 0", 143), ("touch $4/done.json", 0)],
)
def test_a_pod_is_done_when_the_run_is(stubs, tmp_path, body, status):
  stubs.add("python", body)
  done = _run("pod.sh", str(tmp_path), *TRAIN[:2])
  assert (done.returncode, done.stderr) == (status, "")
  train = ["-m", "trainers.train", "--workdir", str(tmp_path), *TRAIN[:2]]
  assert stubs.calls("python") == [train]


def test_a_pod_that_is_taken_away_saves_first(stubs, tmp_path):
  saving = f"sleep 0.5; touch {tmp_path}/saved; exit 0"
  wait = "while true; do sleep 0.05; done"
  stubs.add("python", f"trap '{saving}' TERM; touch {tmp_path}/up; {wait}")
  command = ["bash", str(SCRIPTS / "pod.sh"), str(tmp_path), *TRAIN[:2]]
  with subprocess.Popen(command) as pod:
    while not (tmp_path / "up").exists():
      assert pod.poll() is None
      time.sleep(0.01)
    for _ in range(2):
      pod.terminate()
      time.sleep(0.1)
    assert pod.wait(60) == 143
  assert (tmp_path / "saved").exists()


def test_a_pod_wants_the_folder_first():
  for args in (TRAIN[:2], ["/x", *TRAIN], ["/x-s{seed}", "--seeds=0,1"]):
    done = _run("pod.sh", *args)
    assert done.returncode == 2
    assert "First the run's folder" in done.stderr
