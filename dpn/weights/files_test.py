"""Files whole, in shards, damaged, or of no known format."""

import json
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from dpn.weights import conftest as testing
from dpn.weights import files


def read(path):
  return files.read(files.locate(path))[0]


def test_read_picks_the_parameters(tmp_path):
  x = np.float32([1.0])
  np.savez(tmp_path / "new.npz", **{"params/a/b": x, "opt/0": x, "chrono": x})
  np.savez(tmp_path / "old.npz", **{"opt/target/a/b": x, "opt/state/step": x})
  np.savez_compressed(tmp_path / "plain.npz", **{"a/b": x})
  safetensors.numpy.save_file({"a/b": x}, tmp_path / "ours.safetensors")
  for name in ("new.npz", "old.npz", "plain.npz", "ours.safetensors"):
    assert read(str(tmp_path / name)) == {"a/b": x}


def test_read_subtree(tmp_path):
  path = testing.write(
    tmp_path, {"img/a/b": np.ones(1), "img/c": np.ones(2), "t": np.ones(3)}
  )
  assert read(f"{path}:img").keys() == {"a/b", "c"}
  assert read(f"{path}:img/a").keys() == {"b"}
  with_stats = {"params/img/a": np.ones(1), "batch_stats/img/m": np.ones(2)}
  np.savez(tmp_path / "stats.npz", **with_stats)
  got = read(str(tmp_path / "stats.npz:img"))
  assert got.keys() == {"a", "batch_stats/m"}
  with pytest.raises(
    ValueError, match=r"Unknown subtree 'ima'. Did you mean 'img'\?"
  ):
    read(f"{path}:ima")


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_read_bfloat16(tmp_path, suffix):
  x = np.array([1.0, -2.5, 3e38], jnp.bfloat16)
  path = tmp_path / f"x.{suffix}"
  if suffix == "npz":
    np.savez(path, x=x)
    assert np.load(path)["x"].dtype == "V2"
  else:
    safetensors.numpy.save_file({"x": x}, path)
  got = read(str(path))["x"]
  assert got.dtype == jnp.bfloat16
  np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize(
  "path", ["run/0100", "x.h5", "x.npz:", "x.d/file", "gs://bucket/x.npz:img"]
)
def test_nothing_there(path):
  with pytest.raises(FileNotFoundError, match=r"There is no .*bucket"):
    files.locate(path)


def test_unknown_format(tmp_path):
  (tmp_path / "x.h5").touch()
  with pytest.raises(FileNotFoundError, match=r"no known format.*\.npz or"):
    files.locate(str(tmp_path / "x.h5"))


def test_folders(tmp_path, monkeypatch):
  """A run's folder, its checkpoints, one of them; a finished run's file."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / "run/checkpoints/20").mkdir(parents=True)
  saved = files.Location("run/checkpoints", is_file=False)
  assert files.locate("run") == files.locate("run/checkpoints") == saved
  assert saved.folder == str(tmp_path / "run")
  for step in (20, 30):  # restoring says that there is no 30
    want = files.Location("run/checkpoints", is_file=False, step=step)
    assert files.locate(f"run/checkpoints/{step}") == want
  (tmp_path / "run/params.safetensors").touch()
  assert files.locate("run") == files.Location("run/params.safetensors")
  assert files.locate("run/checkpoints/20").step == 20


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
@pytest.mark.parametrize("keep", [0, 3, 0.5, 0.98])
def test_truncated_file(tmp_path, suffix, keep):
  path = tmp_path / f"x.{suffix}"
  x = np.random.RandomState(0).randn(50, 50)
  if suffix == "npz":
    np.savez_compressed(path, x=x)
  else:
    safetensors.numpy.save_file({"x": x}, path)
  data = path.read_bytes()
  path.write_bytes(data[: int(keep * len(data)) if keep < 1 else keep])
  with pytest.raises(ValueError, match=rf"x\.{suffix}' is not a readable"):
    read(str(path))


def _zeros_within(path):
  np.savez_compressed(path, x=np.random.RandomState(0).randn(50, 50))
  data = bytearray(path.read_bytes())
  data[1000:1100] = bytes(100)
  path.write_bytes(data)


def _zip(path, **members):
  with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
    for name, data in members.items():
      archive.writestr(name, data)


def _float8(path):
  header = b'{"x": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}}'
  path.write_bytes(len(header).to_bytes(8, "little") + header + b"0")


def _array_of(dtype):
  return lambda path: np.savez(path, a=np.ones(2), b=np.zeros(2, dtype))


NO_NUMBERS = "'b' in it holds no real numbers, but"


@pytest.mark.parametrize(
  ("name", "write", "message"),
  [
    ("x.npz", _zeros_within, r"x\.npz' is not a readable"),
    ("x.npz", lambda p: _zip(p, pkl=b""), "'pkl' in it holds no real numbers"),
    ("x.npz", lambda p: _zip(p, x=bytes(7 * 10**7)), "would be 70,000,000 by"),
    ("x.npz", lambda p: _zip(p, **{"x": b"", "x.npy": b""}), "the same name"),
    ("x.npz", np.savez, r"x\.npz' is empty"),
    ("x.npz", _array_of(object), "pickles, which are never opened"),
    ("x.npz", _array_of("datetime64[s]"), NO_NUMBERS),
    ("x.npz", _array_of("U3"), NO_NUMBERS),
    ("x.npz", _array_of(complex), NO_NUMBERS),
    ("x.safetensors", _float8, "NumPy does not know its type"),
  ],
)
def test_damaged_and_foreign_files(tmp_path, name, write, message):
  write(tmp_path / name)
  with pytest.raises(ValueError, match=message):
    read(str(tmp_path / name))


def test_folders_and_pickles(tmp_path):
  missing = r"no params\.safetensors or model"
  with pytest.raises(FileNotFoundError, match=missing):
    read(str(tmp_path))
  with pytest.raises(ValueError, match=r"never opened.*save_file"):
    read("model.bin")
  (tmp_path / "pytorch_model.bin").touch()
  with pytest.raises(ValueError, match=r"model\.bin' is a pickle, which"):
    read(str(tmp_path))
  file = tmp_path / "params.safetensors"
  safetensors.numpy.save_file({"a": np.ones(1)}, file)
  assert read(str(tmp_path)) == {"a": np.ones(1)}


def write_shards(folder, **more):
  """Writes two arrays in two files, and the index of `weight_map`."""
  names = {"a": "one.safetensors", "b": "two.safetensors"}
  for i, (name, file) in enumerate(names.items()):
    safetensors.numpy.save_file({name: np.full(2, i)}, folder / file)
  index = folder / "model.safetensors.index.json"
  index.write_text(json.dumps({"weight_map": names | more}))
  return index


def test_shards(tmp_path):
  index = write_shards(tmp_path)
  for path in (tmp_path, index):
    got = read(str(path))
    assert {k: x.tolist() for k, x in got.items()} == {"a": [0, 0], "b": [1, 1]}


def test_broken_shards(tmp_path):
  index = write_shards(tmp_path, c="three.safetensors")
  with pytest.raises(FileNotFoundError, match=r"'three\.safetensors' is miss"):
    read(str(tmp_path))
  write_shards(tmp_path)
  both = {"a": np.ones(2), "b": np.ones(2)}
  safetensors.numpy.save_file(both, tmp_path / "two.safetensors")
  with pytest.raises(ValueError, match=r"two.safetensors' do .*arrays: a"):
    read(str(tmp_path))
  write_shards(tmp_path, c="two.safetensors")
  with pytest.raises(ValueError, match="same arrays: c"):
    read(str(tmp_path))
  for text in ("{", "[]", "{}", '{"weight_map": []}'):
    index.write_text(text)
    with pytest.raises(
      ValueError, match=r"index\.json( is damaged|: .* must be|: weight_map is)"
    ):
      read(str(tmp_path))
