"""A run's directory keeps to one config, and says what made it."""

import json
import os
import subprocess
import sys

import jax
import pytest

from dpn.trainers import workdir

CONFIG = {
  "lr": 0.1,
  "input": {"data": {"name": "x"}, "num_threads": 4},
  "schedule": [("head", None), (".*", {"warmup_steps": 1})],
  "wd": None,
}


def _enter(path, config, **kw):
  with workdir.lock(path, config, **kw):
    workdir.record(path, config)


@pytest.mark.parametrize(
  ("changes", "name"),
  [
    ({"lr": 0.2}, r"  lr: 0.1 there, 0.2 now\n"),
    ({"wd": 1e-4}, r"  wd: None there, 0.0001 now\n"),
    (
      {"schedule": [("head", {}), (".*", {"warmup_steps": 1})]},
      r"schedule.0.1: None there, \{\} now\n",
    ),
    ({"schedule": {}}, "  schedule.1.1.warmup_steps: 1 there, 'absent' now"),
    ({"input": {"data": {"name": "y"}}}, r"  input.data.name: 'x' there, 'y'"),
  ],
)
def test_another_config_is_refused(tmp_path, changes, name):
  _enter(str(tmp_path), CONFIG)
  (tmp_path / "checkpoints" / "5").mkdir(parents=True)
  with pytest.raises(ValueError, match=name):
    _enter(str(tmp_path), CONFIG | changes)
  _enter(str(tmp_path), CONFIG)  # no lock is left
  assert json.loads((tmp_path / "config.json").read_text())["lr"] == 0.1
  _enter(str(tmp_path), CONFIG | changes, allow_config_change=True)
  _enter(str(tmp_path), CONFIG | changes)


@pytest.mark.parametrize("text", ["", "[]", '{"lr": 0.1'])
def test_damaged_files_of_a_run(tmp_path, text):
  _enter(str(tmp_path), CONFIG)
  (tmp_path / "checkpoints" / "5").mkdir(parents=True)
  for name in ("config.json", "environment.json"):
    (tmp_path / name).write_text(text)
  with pytest.raises(
    ValueError, match=r"config\.json.*--allow_config_change re"
  ):
    _enter(str(tmp_path), CONFIG)
  _enter(str(tmp_path), CONFIG, allow_config_change=True)
  assert json.loads((tmp_path / "config.json").read_text())["lr"] == 0.1
  assert len(json.loads((tmp_path / "environment.json").read_text())) == 1


def test_a_config_may_be_mended_before_the_first_checkpoint(tmp_path):
  _enter(str(tmp_path), CONFIG)
  (tmp_path / "checkpoints").mkdir()
  _enter(str(tmp_path), CONFIG | {"lr": 0.2})
  assert json.loads((tmp_path / "config.json").read_text())["lr"] == 0.2


def test_a_finished_run_without_checkpoints_is_not_of_another_config(tmp_path):
  _enter(str(tmp_path), CONFIG)
  (tmp_path / "done.json").write_text("{}")
  wrong = r"lr: 0\.1 there, 0\.2 now\nGive another --workdir\.$"
  with pytest.raises(ValueError, match=wrong):
    _enter(str(tmp_path), CONFIG | {"lr": 0.2})


@pytest.mark.parametrize(
  "changes",
  [
    {},
    {"input": {"data": {"name": "x", "data_dir": "/d"}, "num_workers": 2}},
    {"mesh": [("data", 2), ("model", 2)], "sharding_strategy": [("a", "b")]},
    {"ckpt_steps": 5, "ckpt_timeout": 1, "keep_ckpt_epochs": 2},
    {"wandb": {"project": "p"}},
  ],
)
def test_what_changes_no_number_is_free(tmp_path, changes):
  folder = tmp_path / "a" / "run"
  _enter(str(folder), CONFIG)
  (folder / "checkpoints" / "5").mkdir(parents=True)
  _enter(str(folder), CONFIG | changes)
  written = json.loads((folder / "config.json").read_text())
  assert written == json.loads(json.dumps(CONFIG | changes))


def test_one_run_at_a_time(tmp_path):
  with workdir.lock(str(tmp_path), CONFIG):
    holder = (
      rf"Another run is using {tmp_path}: process {os.getpid()} on .* since"
    )
    with pytest.raises(ValueError, match=holder):
      _enter(str(tmp_path), CONFIG)
  _enter(str(tmp_path), CONFIG)


def test_the_lock_of_a_dead_process_is_gone(tmp_path):
  code = f"""
import os, signal
from dpn.trainers import workdir
with workdir.lock({str(tmp_path)!r}, {{}}):
  print("held", flush=True)
  os.kill(os.getpid(), signal.SIGSTOP)
"""
  holder = subprocess.Popen(
    [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
  )
  assert holder.stdout.readline() == "held\n"
  with pytest.raises(ValueError, match=f"process {holder.pid} on"):
    _enter(str(tmp_path), {})
  holder.kill()
  holder.communicate()
  _enter(str(tmp_path), {})


def test_a_file_system_without_locks(tmp_path, monkeypatch, caplog):
  def flock(*unused):
    raise OSError(95, "Operation not supported")

  monkeypatch.setattr(workdir.fcntl, "flock", flock)
  with caplog.at_level("WARNING"):
    _enter(str(tmp_path), CONFIG)
  assert "start one run only" in caplog.text


def test_no_folder_to_write_to(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(OSError, match=r"Cannot write to --workdir=.*/file/run"):
    _enter(str(tmp_path / "file" / "run"), CONFIG)
  with pytest.raises(ValueError, match="gs://b/run: expected a folder"):
    _enter("gs://b/run", {})


def test_the_hash_is_of_the_values_not_their_order():
  # printf '{"a":[1,2],"b":{"c":0.5,"d":null}}' | sha256sum
  want = "288c9c757c97"
  config = {"b": {"d": None, "c": 0.5}, "a": (1, 2)}
  assert workdir.config_hash(config) == want
  assert workdir.config_hash(config | {"a": (2, 1)}) != want


def test_the_commit(tmp_path):
  def git(*args):
    name = ["-c", "user.name=n", "-c", "user.email=e"]
    subprocess.run(["git", *name, *args], cwd=tmp_path, check=True)

  assert workdir.commit(tmp_path) is None
  git("init", "-q")
  git("commit", "-qm", "empty", "--allow-empty")
  assert workdir.commit(tmp_path) is None  # as an environment in a repository
  (tmp_path / "file").write_text("1")
  git("add", ".")
  git("commit", "-qm", "first")
  head = (tmp_path / ".git" / "HEAD").read_text().split()[1]
  want = (tmp_path / ".git" / head).read_text().strip()
  assert workdir.commit(tmp_path) == want
  (tmp_path / "new").write_text("")  # a run's own folder may lie there
  assert workdir.commit(tmp_path) == want
  (tmp_path / "file").write_text("2")
  assert workdir.commit(tmp_path) == want + "+changes"


def test_the_checksum_of_the_code(tmp_path, monkeypatch):
  """In a wheel all packages lie in dpn; in a checkout, links to them."""
  root, beside = tmp_path / "dpn", tmp_path / "evaluators"
  files = [root / "optim.py", root / "trainers/update.py", beside / "mean.py"]
  unused = [root / "configs/mini.py", root / "trainers/update_test.py"]
  for path in (*files, *unused):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
  (root / "evaluators").symlink_to(beside)
  monkeypatch.setattr(workdir.dpn, "__file__", str(root / "__init__.py"))
  found = [workdir.code_checksum()]
  for path in files:
    path.write_text(path.name)
    found.append(workdir.code_checksum())
  assert len({*found}) == 4
  for path in unused:
    path.write_text(path.name)
  assert workdir.code_checksum() == found[-1]
  assert workdir.code_checksum([root / "configs"]) != found[-1]


def test_one_entry_for_every_start(tmp_path):
  workdir.record(str(tmp_path), {"lr": 1})
  workdir.record(str(tmp_path), {"lr": 2})
  first, second = json.loads((tmp_path / "environment.json").read_text())
  assert first["config_hash"] != second["config_hash"]
  assert second["num_devices"] == len(jax.devices()) == 4
  assert second["num_processes"] == 1
  assert second["device_kind"] == "cpu"
  assert second["jax"] == jax.__version__
  assert second["loader"]["decoder"].startswith("OpenCV")


def test_what_has_changed_since_the_last_start(tmp_path, monkeypatch):
  record = lambda data: workdir.record(str(tmp_path), {}, {"data": data})
  assert not record("40-ab")
  assert not record("40-ab")
  assert "the data (40-ab before, 41-ab now)" in record("41-ab")
  monkeypatch.setattr(workdir, "code_checksum", lambda: "0f")
  assert "the code (" in record("41-ab")


def test_a_start_with_another_loader_is_warned_about(tmp_path, caplog):
  config = {"evals": {"a": {"pp_fn": "decode|resize(8)"}}}
  workdir.record(str(tmp_path), config)
  workdir.record(str(tmp_path), config)
  assert not caplog.records
  config["evals"]["a"]["pp_fn"] = "decode|resize(8, 'area')"
  workdir.record(str(tmp_path), config)
  assert "'area'" in caplog.text
