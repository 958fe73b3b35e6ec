"""Checkpoints: bit for bit, whatever happens to buffers, mesh or process."""

import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors.numpy
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from dpn import sharding
from dpn.weights import checkpoint, files


def _state(seed=0):
  """Returns a state with a step, parameters, and a bfloat16 first moment."""
  key = jax.random.key(seed)
  params = {
    "kernel": jax.random.normal(key, (8, 16)),
    "bias": jnp.linspace(-1, 1, 16),
  }
  tx = optax.scale_by_adam(mu_dtype="bfloat16")
  _, opt_state = tx.update(params, tx.init(params))
  return {"step": jnp.int32(7), "params": params, "opt_state": opt_state}


def _shapes(state, where):
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where(x)), state
  )


def _replicated(_):
  return sharding.replicated(sharding.make_mesh())


def _split(x):
  """Splits the last axis of what has 16 columns over four devices."""
  spec = P(*[None] * (x.ndim - 1), "data") if x.shape[-1:] == (16,) else P()
  return NamedSharding(sharding.make_mesh(), spec)


def _one_device(_):
  return jax.sharding.SingleDeviceSharding(jax.devices()[2])


def _assert_same_bits(got, want):
  assert jax.tree.structure(got) == jax.tree.structure(want)
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.fixture(name="open_checkpoints")
def _open_checkpoints(tmp_path):
  """Returns a function that opens the same directory, closed in the end."""
  opened = []

  def open_again(**kw):
    opened.append(checkpoint.Checkpointer(str(tmp_path / "checkpoints"), **kw))
    return opened[-1]

  yield open_again
  for checkpointer in opened:
    checkpointer.close()


@pytest.mark.parametrize("where", [_replicated, _split, _one_device])
def test_roundtrip_to_any_sharding(open_checkpoints, where):
  state = jax.tree.map(lambda x: jax.device_put(x, _split(x)), _state())
  assert state["opt_state"].mu["kernel"].dtype == jnp.bfloat16
  first = open_checkpoints()
  assert first.latest is None
  first.save(7, state, {"examples_seen": 10**12})
  first.close()

  again = open_checkpoints()
  assert again.latest == 7
  restored, position = again.restore(_shapes(state, where))
  assert position == {"examples_seen": 10**12}
  _assert_same_bits(restored, state)
  for x in jax.tree.leaves(restored):
    assert x.sharding.is_equivalent_to(where(x), x.ndim)
  wider = jax.tree.map(
    lambda x: x.astype(jnp.promote_types(x.dtype, "float32")), state
  )
  # Not taken for damage, as the checksums of what Orbax converts differ.
  message = r"mu/kernel: bfloat16\(8, 16\) there, float32\(8, 16\) here"
  with pytest.raises(checkpoint.MismatchError, match=message):
    again.restore(_shapes(wider, where))


@pytest.mark.parametrize("averaged", [False, True])
def test_variables_are_read_without_the_optimizer(open_checkpoints, averaged):
  """The same bits as with the whole state, from the checkpoint alone."""
  state = _state() | {
    "model_state": {"batch_stats": {"norm": {"mean": jnp.arange(3.0)}}},
    "ema": jax.tree.map(lambda x: x + 1, _state()["params"]),
  }
  if not averaged:
    state["ema"] = None
  checkpoints = open_checkpoints()
  for step in (3, 7):
    state |= {"step": jnp.int32(step)}
    checkpoints.save(step, state, {"examples_seen": 8 * step})
  checkpoints.close()
  whole, _ = open_checkpoints().restore(_shapes(state, _replicated))
  got, step = open_checkpoints(read_only=True).restore_variables()
  assert step == 7
  params = whole["ema"] if averaged else whole["params"]
  _assert_same_bits(got, {"params": params, **whole["model_state"]})
  assert all(isinstance(x, np.ndarray) for x in jax.tree.leaves(got))
  assert open_checkpoints(read_only=True).restore_variables(3)[1] == 3
  with pytest.raises(FileNotFoundError, match=r"step 4 .*steps \[3, 7\]"):
    open_checkpoints(read_only=True).restore_variables(4)


def test_a_state_may_be_donated_once_save_returns(open_checkpoints):
  @functools.partial(jax.jit, donate_argnums=0)
  def overwrite(state):
    return jax.tree.map(lambda x: x + 1, state)

  big = {"w": jnp.arange(2**22, dtype=jnp.float32)}
  want = np.arange(2**22, dtype=np.float32)
  checkpoints = open_checkpoints()
  checkpoints.save(1, big, {})
  for _ in range(5):
    big = overwrite(big)
  jax.block_until_ready(big)
  checkpoints.close()
  restored, _ = open_checkpoints().restore(_shapes(big, _replicated))
  np.testing.assert_array_equal(restored["w"], want)


def test_saves_leave_no_files_open(open_checkpoints, tmp_path):
  checkpoints, state = open_checkpoints(), _state()
  count = []
  for step in range(1, 9):
    checkpoints.save(step, state, {})
    checkpoints.close()
    count.append(len(list(pathlib.Path("/dev/fd").iterdir())))
    checkpoints = open_checkpoints()
  assert max(count[4:]) <= max(count[:4])


def test_an_interrupted_save(open_checkpoints, tmp_path):
  """Readers leave it: another run may be writing. Its own run removes it."""
  state = _state()
  checkpoints = open_checkpoints()
  checkpoints.save(7, state, {"examples_seen": 70})
  checkpoints.close()
  # What a process that was killed while saving step 9 leaves.
  partial = tmp_path / "checkpoints/9.orbax-checkpoint-tmp"
  partial.mkdir()
  (partial / "half").write_bytes(b"written")
  for read_only in (True, False):
    again = open_checkpoints(read_only=read_only)
    assert again.latest == 7
    restored, position = again.restore(_shapes(state, _replicated))
    _assert_same_bits(restored, state)
    assert position == {"examples_seen": 70}
    if read_only:
      again.close()
      assert partial.exists()
  again.save(10, state, {"examples_seen": 100})
  again.close()
  assert not partial.exists()
  assert open_checkpoints().latest == 10


def test_params_are_exported_as_float32_by_name(tmp_path):
  params = {
    "head": {"kernel": jnp.arange(6.0).reshape(2, 3).T},
    "cls": jnp.bfloat16([[1.5, -2.0]]),
  }
  mesh = sharding.make_mesh()
  params["split"] = jax.device_put(jnp.arange(8.0), sharding.batch(mesh))
  path = tmp_path / "params.safetensors"
  files.save_params(str(path), params)
  loaded = safetensors.numpy.load_file(path)
  assert {k: (v.dtype.name, v.tolist()) for k, v in loaded.items()} == {
    "head/kernel": ("float32", [[0, 3], [1, 4], [2, 5]]),
    "cls": ("float32", [[1.5, -2.0]]),
    "split": ("float32", [0, 1, 2, 3, 4, 5, 6, 7]),
  }
  assert [p.name for p in tmp_path.iterdir()] == ["params.safetensors"]


def test_files_with_metadata_are_the_same_every_time(tmp_path):
  flat = {"b": np.float32([1]), "a/é": np.ones((2, 2), np.float32)}
  said = {c: f'{{"{c}": "é"}}' for c in "hgfedcba"}
  data = files.to_bytes(flat, said)
  start = 8 + int.from_bytes(data[:8], "little")
  listed = list(json.loads(data[8:start])["__metadata__"])
  assert listed == [*sorted(said), "crc32"]
  (tmp_path / "x.safetensors").write_bytes(data[:-1] + b"\1")
  with pytest.raises(ValueError, match="something in it has changed"):
    files.read(files.locate(str(tmp_path / "x.safetensors")))
  (tmp_path / "x.safetensors").write_bytes(data)
  with safetensors.safe_open(tmp_path / "x.safetensors", "numpy") as file:
    assert said.items() < file.metadata().items()
    for name, x in flat.items():
      np.testing.assert_array_equal(file.get_tensor(name), x)
