"""Damaged checkpoints and full disks: noticed, survived, explained."""

import errno
import logging
import os
import resource
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpn import sharding, trees
from dpn.weights import checkpoint

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(64, 64)).astype(np.float32)
HALF = np.ones(3, jnp.bfloat16)


@pytest.fixture(name="state")
def _state():
  mesh = sharding.make_mesh()
  return {
    "rows": jax.device_put(ROWS, sharding.batch(mesh)),
    "half": jax.device_put(HALF, sharding.replicated(mesh)),
  }


@pytest.fixture(name="directory")
def _directory(tmp_path, state):
  """Returns a folder with checkpoints 2, 3, holding `rows` plus the step."""
  checkpoints = checkpoint.Checkpointer(str(tmp_path))
  for step in (1, 2, 3):
    checkpoints.save(step, state | {"rows": state["rows"] + step}, {"n": step})
  checkpoints.close()
  return tmp_path


def test_folders_that_are_not_a_runs_own(tmp_path, state):
  checkpoints = checkpoint.Checkpointer(str(tmp_path))
  checkpoints.save(4, state, {"step": 4})
  checkpoints.close()
  shutil.copytree(tmp_path / "4", tmp_path / "100")
  (tmp_path / "007").mkdir()
  checkpoints = checkpoint.Checkpointer(str(tmp_path))
  assert checkpoints.steps == [4, 100]
  assert checkpoints.restore(_shapes(state))[1] == {"step": 4}
  checkpoints.save(6, state, {"step": 6})
  checkpoints.close()
  assert checkpoints.steps == [4, 6]
  assert (tmp_path / "100.damaged").is_dir()


def _shapes(state):
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
  )


def _files(directory):
  """Returns the files below, the largest first."""
  files = [p for p in directory.rglob("*") if p.is_file()]
  return sorted(files, key=lambda p: -p.stat().st_size)


def _flip_a_bit(directory):
  data = bytearray(_files(directory)[0].read_bytes())
  data[len(data) // 2] ^= 4
  _files(directory)[0].write_bytes(data)


def _cut_in_half(directory):
  os.truncate(_files(directory)[0], _files(directory)[0].stat().st_size // 2)


def _empty_everything(directory):
  for path in _files(directory):
    path.write_bytes(b"")


def _remove_the_arrays(directory):
  for path in _files(directory / "state"):
    path.unlink()


def _notes(change):
  """Returns a function that damages a checkpoint's notes."""

  def damage(directory):
    path = directory / "_CHECKPOINT_METADATA"
    path.write_bytes(change(path.read_bytes()))

  return damage


def _remove_the_notes(directory):
  (directory / "_CHECKPOINT_METADATA").unlink()


def _replace(old, new):
  return _notes(lambda data: data.replace(old, new))


def _change_a_shape(directory):
  path = directory / "state" / "_METADATA"
  path.write_text(path.read_text().replace("rows", "cows"))


DAMAGES = {
  "a bit": _flip_a_bit,
  "half": _cut_in_half,
  "empty": _empty_everything,
  "no arrays": _remove_the_arrays,
  "no notes": _remove_the_notes,
  "zeros": _notes(lambda data: bytes(len(data))),
  "a list": _notes(lambda data: b"[]"),
  "no text": _notes(lambda data: b"\xff" + data),
  "the position": _replace(b'"n": 3', b'"n": 7'),
  "a position of text": _replace(b'"n": 3', b'"n": "3"'),
  "no position": _replace(b'{"n": 3}', b"null"),
  "no checksums": _replace(b"checksums", b"checksumz"),
  "a checksum's name": _replace(b'"rows": ', b'"cows": '),
  "a time of text": _replace(b'nsecs": ', b'nsecs": "x", "y": '),
  "an array's name": _change_a_shape,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_the_previous_one_is_used(directory, state, damage, caplog):
  damage(directory / "3")
  checkpoints = checkpoint.Checkpointer(str(directory))
  with caplog.at_level(logging.ERROR):
    restored, position = checkpoints.restore(_shapes(state))
  assert position == {"n": 2}
  np.testing.assert_array_equal(restored["rows"], ROWS + 2)
  assert f"{directory / '3'} is damaged, trying the one before" in caplog.text
  # The step can be saved again, the damaged one remains to be looked at.
  checkpoints.save(3, state, {"n": 33})
  checkpoints.close()
  assert {p.name for p in directory.iterdir()} == {"2", "3", "3.damaged"}
  _, position = checkpoint.Checkpointer(str(directory)).restore(_shapes(state))
  assert position == {"n": 33}


def test_damaged_parameters_are_not_read(tmp_path):
  saved = checkpoint.Checkpointer(str(tmp_path))
  for step in (1, 2):
    saved.save(step, {"params": {"w": jnp.asarray(ROWS + step)}}, {})
  saved.close()
  _flip_a_bit(tmp_path / "2")
  reader = checkpoint.Checkpointer(str(tmp_path), read_only=True)
  variables, step = reader.restore_variables()
  assert step == 1
  np.testing.assert_array_equal(variables["params"]["w"], ROWS + 1)


def test_none_is_whole(directory, state):
  """Every start says so: starting over is something one has to ask for."""
  _cut_in_half(directory / "2")
  _remove_the_notes(directory / "3")
  for _ in range(2):
    checkpoints = checkpoint.Checkpointer(str(directory))
    assert checkpoints.latest == 3
    with pytest.raises(OSError, match=r"\[2, 3\] are damaged.*start over, del"):
      checkpoints.restore(_shapes(state))
    checkpoints.close()


@pytest.mark.parametrize(
  "error",
  [
    MemoryError(),
    OSError(errno.EMFILE, "Too many open files"),
    RuntimeError("can't start new thread"),
    ValueError("RESOURCE_EXHAUSTED: of tensorstore"),
  ],
)
def test_a_shortage_is_no_damage(directory, state, monkeypatch, error):
  def fail(*_):
    raise ValueError("The checkpoint cannot be read") from error

  monkeypatch.setattr(checkpoint.ocp, "load", fail)
  checkpoints = checkpoint.Checkpointer(str(directory))
  with pytest.raises(ValueError, match="The checkpoint cannot be read"):
    checkpoints.restore(_shapes(state))
  assert {p.name for p in directory.iterdir()} == {"2", "3"}


def test_a_step_that_is_damaged_again(directory, state):
  for number in range(3):
    _flip_a_bit(directory / "3")
    checkpoints = checkpoint.Checkpointer(str(directory))
    assert checkpoints.restore(_shapes(state))[1] == {"n": 2}
    checkpoints.save(3, state, {"n": number})
    checkpoints.close()
  aside = {"3.damaged", "3.damaged-2", "3.damaged-3"}
  assert {p.name for p in directory.iterdir()} == {"2", "3", *aside}


def test_an_older_one_is_damaged(directory, state):
  """It is not needed now, but is not in the way either."""
  (directory / "2" / "_CHECKPOINT_METADATA").write_text("[]")
  checkpoints = checkpoint.Checkpointer(str(directory))
  assert checkpoints.restore(_shapes(state))[1] == {"n": 3}
  checkpoints.save(4, state, {"n": 4})
  checkpoints.close()
  assert {p.name for p in directory.iterdir()} == {"2.damaged", "3", "4"}


def test_another_run_s_damaged_ones_stay_where_they_are(directory, state):
  _cut_in_half(directory / "3")
  other = checkpoint.Checkpointer(str(directory), read_only=True)
  assert other.restore(_shapes(state))[1] == {"n": 2}
  assert {p.name for p in directory.iterdir()} == {"2", "3"}


def test_nothing_is_read_that_a_process_lacks(directory, state, monkeypatch):
  """Orbax would wait for it, and from then on every barrier would time out."""
  answers = iter([[True, False], [True, True], [True, True]])
  monkeypatch.setattr(
    checkpoint.multihost_utils,
    "process_allgather",
    lambda mine: np.array(next(answers)),
  )
  loaded, load = [], checkpoint.ocp.load
  monkeypatch.setattr(
    checkpoint.ocp, "load", lambda p, x: loaded.append(p.name) or load(p, x)
  )
  checkpoints = checkpoint.Checkpointer(str(directory), read_only=True)
  assert checkpoints.restore(_shapes(state))[1] == {"n": 2}
  assert loaded == ["2"]


def test_a_file_server_that_is_gone_is_no_damage(directory, state, monkeypatch):
  def gone(path):
    raise OSError(errno.ESTALE, "Stale file handle")

  monkeypatch.setattr(checkpoint, "_metadata", gone)
  with pytest.raises(OSError, match="Stale file handle"):
    checkpoint.Checkpointer(str(directory)).restore(_shapes(state))
  assert {p.name for p in directory.iterdir()} == {"2", "3"}


def test_a_full_disk(directory, state):
  checkpoints = checkpoint.Checkpointer(str(directory))
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
  resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
  try:
    checkpoints.save(4, state, {"n": 4})
    with pytest.raises(OSError, match="The last good one is of step 3"):
      checkpoints.close()
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, before)
  again = checkpoint.Checkpointer(str(directory))
  restored, position = again.restore(_shapes(state))
  assert position == {"n": 3}
  np.testing.assert_array_equal(restored["rows"], ROWS + 3)


def _mixed(x):
  x = (x ^ x >> 16) * 0x85EBCA6B % 2**32
  x = (x ^ x >> 13) * 0xC2B2AE35 % 2**32
  return (x ^ x >> 16) | 1


def test_checksum_by_hand():
  tree = [jnp.uint32([[5, 6], [7, 8]]), jnp.array([False, True])]
  first = sum(v * _mixed(k) for k, v in enumerate([5, 6, 7, 8]))
  assert int(trees.checksum(tree)) == (first + _mixed(0x9E3779B9 + 1)) % 2**32
  with jax.enable_x64(True):
    tree = [np.uint64(5 + (6 << 32)), np.float64(1)]  # halves of 32 bits
    halves = 5 * _mixed(0) + 6 * _mixed(1)
    halves += 0x3FF00000 * _mixed(0x9E3779B9 + 1)
    assert int(trees.checksum(tree)) == halves % 2**32


def test_checksum_sees_every_change_and_no_sharding(state):
  whole = int(trees.checksum(state))
  alone = int(trees.checksum(jax.device_get(state)))
  assert whole == alone
  rows = ROWS.copy()
  rows[[3, 5]] = rows[[5, 3]]
  assert int(trees.checksum(state | {"rows": rows})) != whole
  assert int(trees.checksum(state | {"half": -HALF})) != whole
  a, b = jnp.arange(3), jnp.arange(3)[::-1]
  assert trees.checksum([a, b]) != trees.checksum([b, a])
