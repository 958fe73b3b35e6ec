"""The benchmark's own arithmetic; what it measures is not tested."""

import io
import json
import pathlib
import random

import numpy as np
import PIL.Image
import pytest

from benchmarks import harness, input_peers, segmentation_peer
from benchmarks import input as input_benchmark
from dpn.input_pipeline.pp import jpeg


@pytest.fixture(name="folder")
def _folder(tmp_path, monkeypatch):
  counts = {"tiny": 4, "crop": 3, "segment": 2, "prepared": 1}
  tasks = {
    name: task._replace(
      count=counts.get(name), batch_size=2 if name == "segment" else 6
    )
    for name, task in input_peers.TASKS.items()
  }
  monkeypatch.setattr(input_peers, "TASKS", tasks)
  for task in counts:
    folder = tmp_path / "prepared" if task == "prepared" else tmp_path
    input_benchmark.write_images(str(folder), task)
  return str(tmp_path)


@pytest.mark.parametrize("task", ["tiny", "crop"])
def test_stages_and_batches(folder, task):
  spent = input_benchmark.stages(task, folder)
  assert set(spent) == {"read", "decode", "augment", "batch", "to device"}
  assert min(spent.values()) > 0
  batch = next(input_peers.ours(task, folder))
  side = {"tiny": 32, "crop": 224}[task]
  assert batch.shape == (6, side, side, 3)
  assert batch.dtype == np.float32
  assert -1 <= batch.min() < -0.5 < 0.5 < batch.max() <= 1


def test_prepared_images(folder):
  [path] = input_peers.files("prepared", f"{folder}/prepared")
  data = pathlib.Path(path).read_bytes()
  cutter = jpeg.Cutter.from_bytes(data)
  assert cutter.size == (384, 512)
  image = PIL.Image.open(io.BytesIO(data))
  assert image.quantization[0][0] == 2  # 16 at quality 50
  with pytest.raises(NotImplementedError, match="have them"):
    input_peers.with_markers("prepared", folder)


@pytest.mark.parametrize("task", ["crop", "randaug", "eval", "tiny"])
def test_pillow_makes_what_we_do(folder, task):
  random.seed(0)
  sources = input_peers.files(task, folder)
  image = input_peers.PillowExamples(task, sources)[2]
  assert image.shape == ((32, 32, 3) if task == "tiny" else (224, 224, 3))
  assert image.dtype == np.float32
  assert -1 <= image.min() < image.max() <= 1


def test_the_peer_that_segments_makes_what_we_do(folder):
  assert {*input_benchmark.stages("segment", folder)} >= {"decode", "augment"}
  ours = next(input_peers.ours("segment", folder))
  paths = input_peers.files("segment", folder)
  image, labels = segmentation_peer.Examples("segment", paths)[1]
  assert ours.shape == (2, *image.shape) == (2, 512, 512, 3)
  assert ours.dtype == image.dtype
  assert labels.shape == (512, 512)
  assert {*np.unique(labels)} <= {*range(5, 150, 6), 255}


def test_ratio_is_to_the_fastest_peer(tmp_path, monkeypatch, capsys):
  rates = {
    "ours": [300, 100, 200],
    "without fast": [900, 900, 900],
    "restart markers": [250, 260, 240],
    "tf.data": [160, 20, 100],
  }
  left = {who: iter(values) for who, values in rates.items()}

  def measured(module, arguments):
    assert module == "benchmarks.input_peers"
    if arguments["who"] == "torch+Pillow":
      return {"error": "No module named 'torch'"}
    return {"rate": next(left[arguments["who"]]), "cpu_ms": 1.0, "peak_mb": 50}

  monkeypatch.setattr(harness, "worker", measured)
  monkeypatch.setattr(input_benchmark, "write_images", lambda *args: None)
  monkeypatch.setattr(input_benchmark, "stages", lambda *args: {"read": 0.5})
  path = tmp_path / "speed.json"
  input_benchmark.main(["--tasks", "crop", "--json", str(path)])
  assert json.loads(path.read_text()) == {
    "crop": {
      "ours": 200,
      "tf.data": 100,
      "ratio": 2,
      "restart markers": 250,
      "ratio_restart": 2.5,
    }
  }
  out = capsys.readouterr().out
  for text in ("900", "ratio to the fastest peer 2.00", "No module named 'to"):
    assert text in out
