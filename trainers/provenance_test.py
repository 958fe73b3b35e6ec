"""What environment.json says of a run."""

import json
import subprocess

import jax

from trainers import provenance


def test_the_hash_is_of_the_values_not_their_order():
  # printf '{"a":[1,2],"b":{"c":0.5,"d":null}}' | sha256sum
  want = "288c9c757c97"
  assert provenance.config_hash({"b": {"d": None, "c": 0.5}, "a": (1, 2)}) == (
    want
  )
  assert provenance.config_hash({"b": {"d": None, "c": 0.5}, "a": (2, 1)}) != (
    want
  )


def test_the_commit(tmp_path):
  def git(*args):
    name = ["-c", "user.name=n", "-c", "user.email=e"]
    subprocess.run(["git", *name, *args], cwd=tmp_path, check=True)

  assert provenance.commit(tmp_path) is None
  git("init", "-q")
  (tmp_path / "file").write_text("1")
  git("add", ".")
  git("commit", "-qm", "first")
  head = (tmp_path / ".git" / "HEAD").read_text().split()[1]
  want = (tmp_path / ".git" / head).read_text().strip()
  assert provenance.commit(tmp_path) == want
  (tmp_path / "new").write_text("")  # a run's own folder may lie there
  assert provenance.commit(tmp_path) == want
  (tmp_path / "file").write_text("2")
  assert provenance.commit(tmp_path) == want + "+changes"


def test_one_entry_for_every_start(tmp_path):
  provenance.record(str(tmp_path), {"lr": 1})
  provenance.record(str(tmp_path), {"lr": 2})
  first, second = json.loads((tmp_path / "environment.json").read_text())
  assert first["config_hash"] != second["config_hash"]
  assert second["num_devices"] == len(jax.devices()) == 4
  assert second["num_processes"] == 1
  assert second["device_kind"] == "cpu"
  assert second["jax"] == jax.__version__
