"""Launchers: what they would run, and what is wrong with them."""

import pathlib
import shlex
import shutil
import subprocess
import sys

import pytest
import yaml

SCRIPTS = pathlib.Path(__file__).parent
SHELL = sorted(SCRIPTS.glob("*.sh"))
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
  [command] = _commands("slurm.sh", "--nodes", "4", "--time", "1:00:00")
  assert command[0] == "sbatch"
  assert {"--nodes=4", "--ntasks-per-node=1", "--time=1:00:00"} <= set(command)
  assert {"--signal=TERM@120", "--requeue"} <= set(command)
  wrapped = shlex.split(command[-1].removeprefix("--wrap="))
  assert wrapped[0] == "srun"
  assert wrapped[wrapped.index("trainers.train") + 1 :] == TRAIN


def test_tpu():
  *first, last = _commands("tpu.sh", *TPU, "--spot", "--bucket", "data")
  assert first[0][:5] == [
    "gcloud",
    "compute",
    "tpus",
    "queued-resources",
    "create",
  ]
  assert {"--accelerator-type=v5litepod-64", "--spot"} <= set(first[0])
  assert any("gcsfuse" in part for part in first[-1])
  assert last[:5] == ["gcloud", "compute", "tpus", "tpu-vm", "ssh"]
  assert "--worker=all" in last
  remote = shlex.split(last[-1].removeprefix("--command="))
  assert remote[remote.index("trainers.train") + 1 :] == TRAIN


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


# Fields by path, from the reference of JobSet v1alpha2 and of Kubernetes' Job
# and PodSpec; None where any key is right.
JOB = ("spec", "replicatedJobs", "template", "spec")
POD = (*JOB, "template", "spec")
FIELDS = {
  (): "apiVersion kind metadata spec",
  ("metadata",): "name namespace labels annotations",
  ("spec",): "replicatedJobs network successPolicy failurePolicy startupPolicy "
  "suspend coordinator managedBy ttlSecondsAfterFinished volumeClaimPolicies",
  ("spec", "failurePolicy"): "maxRestarts restartStrategy rules",
  ("spec", "replicatedJobs"): "name groupName replicas template dependsOn",
  JOB[:-1]: "metadata spec",
  JOB: "parallelism completions completionMode backoffLimit template suspend "
  "activeDeadlineSeconds podFailurePolicy ttlSecondsAfterFinished",
  POD[:-1]: "metadata spec",
  (*POD[:-1], "metadata"): "annotations labels",
  POD: "restartPolicy terminationGracePeriodSeconds serviceAccountName volumes "
  "nodeSelector containers tolerations hostNetwork dnsPolicy initContainers",
  (*POD, "containers"): "name image command args env ports resources "
  "volumeMounts securityContext workingDir imagePullPolicy",
  (*POD, "containers", "env"): "name value valueFrom",
  (*POD, "containers", "ports"): "containerPort name protocol",
  (*POD, "containers", "resources"): "limits requests",
  (*POD, "containers", "volumeMounts"): "name mountPath readOnly subPath",
  (*POD, "volumes"): "name csi persistentVolumeClaim emptyDir",
  (*POD, "volumes", "csi"): "driver readOnly volumeAttributes",
  (*POD, "volumes", "persistentVolumeClaim"): "claimName readOnly",
}
FREE = {"annotations", "labels", "nodeSelector", "limits", "volumeAttributes"}


def _check_fields(value, path=()):
  if isinstance(value, list):
    for item in value:
      _check_fields(item, path)
  elif isinstance(value, dict) and (not path or path[-1] not in FREE):
    assert set(value) <= set(FIELDS[path].split()), path
    for key, item in value.items():
      _check_fields(item, (*path, key))


def test_the_fields_of_the_jobset():
  jobset = yaml.safe_load((SCRIPTS / "gke.yaml").read_text())
  _check_fields(jobset)
  assert jobset["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
  assert jobset["kind"] == "JobSet"
  [job] = jobset["spec"]["replicatedJobs"]
  spec = job["template"]["spec"]
  pod = spec["template"]["spec"]
  rows, cols = map(
    int,
    pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x"),
  )
  chips = pod["containers"][0]["resources"]["limits"]["google.com/tpu"]
  assert spec["parallelism"] == spec["completions"] == rows * cols // chips
  assert spec["backoffLimit"] == 0
  mounts = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
  assert mounts == {volume["name"] for volume in pod["volumes"]}
  with pytest.raises(AssertionError, match="replicatedJobs"):
    _check_fields({"spec": {"replicatedJobs": [{"replica": 1}]}})
