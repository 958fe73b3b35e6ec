"""Batches: the same at any position, however the work is divided."""

import concurrent.futures
import ctypes
import hashlib
import itertools
import math
import multiprocessing
import os
import resource
import signal
import time

import numpy as np
import pyarrow
import pytest
from ml_collections import ConfigDict
from pyarrow import parquet

from dpn.input_pipeline import conftest as testing
from dpn.input_pipeline import pipeline, pp

_PP = 'decode|resize(12)|random_crop(8)|flip_lr|keep("image", "label")'


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
  """22 training JPEGs; the label is the index."""
  path = str(tmp_path_factory.mktemp("tfds"))
  rng = np.random.default_rng(0)
  examples = {
    "train": [
      {"image": testing.jpeg(rng, 12, 15), "label": i, "id": f"i{i}"}
      for i in range(22)
    ]
  }
  features = {"image": "jpeg", "label": 22, "id": "text"}
  testing.write_tfds(path, "tiny", examples, features, num_shards=2)
  return path


def _config(data_dir, **changes):
  data = {"name": "tiny", "split": "train", "data_dir": data_dir}
  return {"data": data, "batch_size": 8, "pp": _PP, **changes}


def _take(data, count, examples_seen=0):
  batches = data.batches(examples_seen)
  taken = list(itertools.islice(batches, count))
  batches.close()
  return taken


def _hashes(batches):
  return [
    hashlib.sha256(batch["image"].tobytes() + batch["label"].tobytes()).digest()
    for batch in batches
  ]


@pytest.fixture(scope="module")
def reference(data_dir):
  """Ten batches of eight: three and a half epochs."""
  data = pipeline.training(_config(data_dir, num_threads=1), seed=7)
  return _take(data, 10)


@pytest.mark.parametrize(
  ("how", "step", "processes"),
  [
    ({"num_threads": 5, "prefetch": 3}, 0, 1),
    ({"num_threads": 1}, 1, 2),
    ({"num_threads": 3}, 5, 4),
    ({"seed": 7}, 8, 1),
    ({"num_workers": 2, "prefetch": 1}, 3, 1),
    pytest.param({"num_workers": 1}, 4, 2, marks=pytest.mark.slow),
  ],
)
def test_same_batches_however_made_from_any_step(
  data_dir, reference, how, step, processes
):
  seed = 0 if "seed" in how else 7
  shares = []
  for index in range(processes):
    data = pipeline.training(
      _config(data_dir, **how),
      seed=seed,
      process_index=index,
      process_count=processes,
    )
    shares.append(_take(data, 10 - step, examples_seen=8 * step))
  batches = [
    {key: np.concatenate([x[key] for x in rows]) for key in rows[0]}
    for rows in zip(*shares, strict=True)
  ]
  assert _hashes(batches) == _hashes(reference[step:])


def test_position_decides_not_the_batch(data_dir, reference):
  flat = {
    key: np.concatenate([batch[key] for batch in reference])
    for key in ("image", "label")
  }
  # A piece is 64 rows at most: 70 rows are two of 35.
  data = pipeline.training(_config(data_dir, batch_size=70), seed=7)
  (batch,) = _take(data, 1, examples_seen=5)
  for key, value in flat.items():
    np.testing.assert_array_equal(batch[key], value[5:75])
  np.testing.assert_array_equal(
    _take(data, 1, examples_seen=10**12)[0]["label"],
    _take(data, 1, examples_seen=10**12 - 7)[0]["label"][7:].tolist()
    + _take(data, 1, examples_seen=10**12 + 63)[0]["label"][:7].tolist(),
  )


def test_every_epoch_covers_all_once_with_fresh_augmentation(reference):
  labels = np.concatenate([batch["label"] for batch in reference])[:66]
  images = np.concatenate([batch["image"] for batch in reference])
  epochs = labels.reshape(3, 22).tolist()
  for epoch in epochs:
    assert sorted(epoch) == list(range(22))
  assert len({tuple(epoch) for epoch in epochs}) == 3
  # 25 positions x 2 flips: three epochs rarely agree.
  same = [
    np.array_equal(images[a], images[b])
    for a, b in itertools.combinations(range(66), 2)
    if labels[a] == labels[b]
  ]
  assert len(same) == 66
  assert sum(same) < 10


def test_training_data_describes_itself(data_dir, reference):
  ignored = {"shuffle_buffer_size": 250_000, "cache_raw": True}
  config = ConfigDict(_config(data_dir, **ignored))
  data = pipeline.training(config, seed=8, process_index=1, process_count=2)
  assert (data.num_examples, data.batch_size) == (22, 8)
  assert data.spec == {
    "image": ((8, 8, 8, 3), np.uint8),
    "label": ((8,), np.int32),
  }
  (batch,) = _take(data, 1)
  assert batch["image"].shape == (4, 8, 8, 3)
  # Another seed, other examples.
  assert batch["label"].tolist() != reference[0]["label"][4:].tolist()


def test_warnings(data_dir, caplog):
  data = {"name": "arrays:digits", "split": "train[:3]"}
  config = {"data": data, "batch_size": 10, "pp": 'keep("label")'}
  data = pipeline.training(config, seed=0)
  assert "has 3 examples, fewer than a batch of 10" in caplog.text
  labels = np.concatenate([batch["label"] for batch in _take(data, 3)])
  for epoch in labels.reshape(10, 3).tolist():
    assert sorted(epoch) == [0, 1, 2]
  given = {"num_workers": 1, "num_threads": 2, "prefetch": 3}
  pipeline.training(_config(data_dir, **given), seed=0)
  assert "config.input.num_workers has no use for num_threads." in caplog.text
  caplog.clear()
  given |= {"on_device": True, "pp": 'decode|resize(8)|keep("image")'}
  pipeline.training(_config(data_dir, **given), seed=0)
  assert "on_device has no use for num_workers, prefetch." in caplog.text
  assert "num_threads" not in caplog.text


def _corrupt(folder, *damaged, **how):
  """Returns the config for six JPEGs, of which some are cut off."""
  folder = folder / "train" / "class"
  folder.mkdir(parents=True)
  for i in range(6):
    content = testing.jpeg(np.random.default_rng(i), 9, 9)
    (folder / f"{i}.jpg").write_bytes(content[: 100 if i in damaged else None])
  data = {"name": f"folder:{folder.parents[1]}", "split": "train"}
  return {"data": data, "batch_size": 3, "pp": 'decode|keep("image")', **how}


@pytest.mark.parametrize(
  "how", [{}, pytest.param({"num_workers": 1}, marks=pytest.mark.slow)]
)
def test_corrupt_records_are_named(tmp_path, how):
  data = pipeline.training(_corrupt(tmp_path, 4, **how), seed=0)
  message = (
    rf"{tmp_path}/train/class/4.jpg: Preprocessing op decode failed on "
    r"{image: 100 bytes.*not a whole image in a known format \(100 bytes"
  )
  with pytest.raises(ValueError, match=message):
    _take(data, 3)


@pytest.mark.parametrize(
  "how", [{}, pytest.param({"num_workers": 1}, marks=pytest.mark.slow)]
)
def test_corrupt_records_are_skipped_and_counted(tmp_path, how):
  config = _corrupt(tmp_path, 0, 4, on_error="skip", **how)
  data = pipeline.training(config, seed=0)
  batches = _take(data, 6)
  images = np.concatenate([batch["image"] for batch in batches])
  skipped = sum(batch["_skipped"].sum() for batch in batches)
  assert skipped == 2 * 3  # Two of six, in three epochs.
  for i in (1, 5):  # Each stood in for the one before it, too.
    jpeg = testing.jpeg(np.random.default_rng(i), 9, 9)
    image = pp.make("decode")({"image": jpeg}, None)["image"]
    found = (images == image).all((1, 2, 3)).reshape(3, 6)
    assert found.sum(1).tolist() == [2, 2, 2]
  (tmp_path / "train/class/0.jpg").unlink()
  assert data.checksum().startswith("6-")


@pytest.mark.slow
def test_workers_and_signals(data_dir):
  data = pipeline.training(_config(data_dir, num_workers=2), seed=0)
  batches = data.batches()
  workers = lambda: [
    process
    for process in multiprocessing.active_children()
    if "grain" in process.name
  ]
  deadline = time.monotonic() + 60

  # As a scheduler sends to all processes of a run, which is then to save.
  def ask_all_to_stop():
    while len(found := workers()) < 2 and time.monotonic() < deadline:
      time.sleep(0.01)
    for process in found:  # They have not loaded our code yet.
      os.kill(process.pid, signal.SIGTERM)
      os.kill(process.pid, signal.SIGINT)
    return len(found)

  with concurrent.futures.ThreadPoolExecutor() as pool:
    asked = pool.submit(ask_all_to_stop)
    list(itertools.islice(batches, 50))
  assert asked.result() == 2
  for process in workers():
    process.kill()
  # What was ready may still come.
  with pytest.raises(RuntimeError, match=r"unexpectedly with exit code -9"):
    list(itertools.islice(batches, 50))


def test_mixture(data_dir):
  part = lambda split, label: {
    "data": {**_config(data_dir)["data"], "split": split},
    "pp": f'decode|resize(8)|value_range({label}, {label})|keep("image")',
  }
  config = {"data": {"a": 3, "b": 1, "unused": 0}, "batch_size": 500}
  config |= {"a": part("train[:5]", 0), "b": part("train[5:]", 1)}
  data = pipeline.training(ConfigDict(config), seed=0)
  assert data.num_examples == 22
  for batch in _take(data, 2, examples_seen=1000):
    assert 0.2 < batch["image"].mean() < 0.3
  both = [batch["image"].mean() for batch in _take(data, 2)]
  np.testing.assert_allclose(np.mean(both), 0.25, atol=1e-6)
  for changes, message in (
    ({"b": None}, "config.input.b must hold data"),
    ({"pp": ""}, r"have a pp each.*input\.a\.pp"),
    ({"b": {**part("train", 1), "p": 1}}, "b must hold data and pp, got.*'p'"),
    ({"data": {}}, "needs a name and a split, got {}"),
  ):
    with pytest.raises(ValueError, match=message):
      pipeline.training({**config, **changes}, seed=0)


def test_repeated_examples_are_augmented_anew(data_dir):
  data = pipeline.training(_config(data_dir, repeats=2), seed=0)
  for batch in _take(data, 3):
    labels = batch["label"].reshape(2, 4)
    np.testing.assert_array_equal(*labels)
    first, second = batch["image"].reshape(2, 4, -1)
    assert (first != second).any()


@pytest.mark.slow
def test_memory_stays_flat_over_epochs():
  data = {"name": "arrays:digits", "split": "train"}
  spec = 'resize(16)|value_range|keep("image", "label")'
  config = {"data": data, "batch_size": 128, "pp": spec}
  peak_kb = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  batches = pipeline.training(config, seed=0).batches()
  epochs = lambda n: [next(batches) for _ in range(n * 11)][-1]
  epochs(20)
  before = peak_kb()
  for _ in range(5):
    epochs(10)
  batches.close()
  # Fifty epochs of 1.4 MB each, ten of which may be held at once above.
  assert peak_kb() - before < 8_000


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"pp": "decode|flip"}, "Unknown op 'flip'"),
    ({"pp": "decode"}, r"the values of 'id' \(\|S2\) are not numbers"),
    ({"pp": _PP.replace("12", "4")}, r"random_crop\(8\) failed on.*4 x 4"),
    ({"batch": 1}, "Unknown key of config.input 'batch'.*'batch_size'"),
    ({"batch_size": 0}, "batch_size must be an integer from 1, got 0"),
    ({"batch_size": "4"}, "batch_size must be an integer from 1, got '4'"),
    ({"prefetch": 0}, "prefetch must be an integer from 1, got 0"),
    ({"repeats": 1.5}, "repeats must be an integer from 1, got 1.5"),
    ({"data": {"a": "1"}, "pp": None}, "has no name, .* expected weights"),
    ({"data": {"a": math.nan, "b": 1}, "pp": None}, "expected weights"),
    ({"data": "arrays:digits"}, "data must be of type dict, got 'arrays:digit"),
    ({"pp": ["decode"]}, "must be of type str or NoneType, got .'decode'"),
    ({"seed": -1}, r"seed, or config.seed, must be in \[0, 2\*\*32\), got -1"),
    ({"seed": 2**32}, r"must be in \[0, 2\*\*32\), got 4294967296"),
    ({"on_error": "skp"}, "Unknown on_error 'skp'. Did you mean 'skip'"),
    ({"batch_size": None}, "needs batch_size, it has"),
  ],
)
def test_wrong_configs_fail_at_once(data_dir, changes, message):
  with pytest.raises(ValueError, match=message):
    pipeline.training(_config(data_dir, **changes), seed=0)


def test_uneven_shares(data_dir):
  with pytest.raises(ValueError, match="multiple of the 3 processes"):
    pipeline.training(_config(data_dir), seed=0, process_count=3)


def test_onehot_is_compared_with_the_classes(tmp_path):
  testing.class_folders(tmp_path / "train", classes=3, images=1)
  data = {"name": f"folder:{tmp_path}", "split": "train[:2]"}

  def shape(depth, before=""):
    onehot = f'onehot({depth}, key="label", key_result="labels")'
    ops = f'decode|flip_lr|{before}{onehot}|keep("labels")'
    return pipeline.evaluation(data, ops, 2).spec["labels"][0]

  assert shape(3) == (2, 3)
  for depth in (2, 4):
    message = rf"3 classes of 'label', but onehot makes {depth}\. Set config\."
    with pytest.raises(ValueError, match=message):
      shape(depth)
    # An op that may change the labels.
    assert shape(depth, 'bin_label("label", 3, 2)|') == (2, depth)
  data.update(name="arrays:digits")  # ten classes, which have no names
  with pytest.raises(ValueError, match="10 classes of 'label', but onehot mak"):
    pipeline.evaluation(data, 'onehot(9, key="label")|keep("label")', 2)
  pipeline.evaluation(data, 'onehot(12, key="label")|keep("label")', 2)


def test_parts_of_a_mixture_have_the_same_classes(tmp_path):
  config = {"batch_size": 2, "data": {"a": 1, "b": 1}}
  for part in config["data"]:
    testing.class_folders(tmp_path / part / "train", classes=2, images=1)
    data = {"name": f"folder:{tmp_path / part}", "split": "train"}
    pp = 'decode|onehot(2, key="label", key_result="labels")|keep("labels")'
    config[part] = {"data": data, "pp": pp}
  assert pipeline.training(config, seed=0).num_examples == 4
  (tmp_path / "b/train/class0").rename(tmp_path / "b/train/cat")
  with pytest.raises(ValueError, match="a and b have other classes"):
    pipeline.training(config, seed=0)


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("batch_size", [4, 20, 140])
def test_evaluation_sees_every_example_once(data_dir, batch_size, count):
  data = _config(data_dir)["data"]
  seen = {}
  for index in range(count):
    share = pipeline.evaluation(
      data, _PP, batch_size, process_index=index, process_count=count
    )
    assert share.num_examples == 22
    assert share.examples.source.num_classes("label") == 22
    batches = list(share)
    assert len(batches) == len(share) == -(-22 // batch_size)
    for step, batch in enumerate(batches):
      assert batch["_mask"].dtype == bool
      assert batch["image"].shape == (batch_size // count, 8, 8, 3)
      for row, real in enumerate(batch["_mask"]):
        position = step * batch_size + index * batch_size // count + row
        assert real == (position < 22)
        if real:
          assert batch["label"][row] == position
          seen[position] = batch["image"][row]
        else:
          assert batch["label"][row] == 0
          assert not batch["image"][row].any()
  assert sorted(seen) == list(range(22))
  # Random ops, too, depend on the example alone.
  whole = next(iter(pipeline.evaluation(data, _PP, 22)))
  for position, image in seen.items():
    np.testing.assert_array_equal(image, whole["image"][position])


def test_single_examples_of_many_sizes(tmp_path):
  folder = tmp_path / "train" / "a"
  folder.mkdir(parents=True)
  rng = np.random.default_rng(0)
  for i in range(7):
    (folder / f"{i}.jpg").write_bytes(testing.jpeg(rng, 5 + i, 9))
  data = {"name": f"folder:{tmp_path}", "split": "train"}
  spec = 'decode|copy("image", "crop")|random_crop(3)|keep("image", "crop")'
  seen = {}
  for process in range(3):
    share = pipeline.examples(
      data, spec, process_index=process, process_count=3
    )
    assert (len(share), share.num_examples) == (3 - (process > 0), 7)
    first, second = list(share), list(share)
    assert [index for index, _ in first] == list(range(process, 7, 3))
    for (_, once), (_, again) in zip(first, second, strict=True):
      np.testing.assert_array_equal(once["image"], again["image"])
    seen.update(first)
  # Random ops depend on the example alone.
  spec = 'decode|random_crop(3)|keep("image")'
  (whole,) = pipeline.evaluation(data, spec, 7)
  for i in range(7):
    assert seen[i]["crop"].shape == (5 + i, 9, 3)
    np.testing.assert_array_equal(seen[i]["image"], whole["image"][i])


@pytest.mark.parametrize("cache", [False, True])
def test_evaluation_repeats(data_dir, cache):
  data = pipeline.evaluation(_config(data_dir)["data"], _PP, 8, cache=cache)
  next(iter(data))  # A round that stops early leaves nothing behind.
  first, second, third = list(data), list(data), list(data)
  assert _hashes(first) == _hashes(second) == _hashes(third)
  assert len(first) == 3
  for a, b in zip(second, third, strict=True):
    assert (a["image"] is b["image"]) == cache


def test_other_systems(tmp_path, data_dir, reference, monkeypatch):
  """What only Linux, or only Unix, has is not needed."""
  monkeypatch.delattr(os, "sched_getaffinity", raising=False)
  monkeypatch.delattr(os, "sysconf", raising=False)

  def no_library(name):  # what Windows does with the name None
    raise TypeError(name)

  monkeypatch.setattr(ctypes, "CDLL", no_library)
  data = pipeline.training(_config(data_dir), seed=7)
  assert _hashes(_take(data, 3)) == _hashes(reference[:3])
  assert len(list(pipeline.evaluation(_config(data_dir)["data"], _PP, 8))) == 3
  table = pyarrow.table({"x": np.arange(5)})
  parquet.write_table(table, tmp_path / "train.parquet")
  source = {"name": f"parquet:{tmp_path}", "split": "train"}
  (batch,) = pipeline.evaluation(source, "", 8)
  assert batch["x"].tolist() == [0, 1, 2, 3, 4, 0, 0, 0]
