"""The models in docs/models: they load, and are what their pages say."""

import json
import pathlib
import re

import jax
import numpy as np
import pytest

from dpn.models import vit
from dpn.scripts.evaluation import labels

DOCS = pathlib.Path(__file__).parents[1] / "docs"
MOST_BYTES = 10_000_000
# name → archive of the study, the run of the same seed, its measure.
RUNS = {
  "imagenette": (
    "photos_imagenette",
    "confirm/dpn+patch_stats_lr3e-4_emb1-s0",
    "test/prec@1",
  ),
  "scenes": (
    "photos_scenes",
    "confirm/dpn+patch_stats_lr1e-3_emb1-s0",
    "test/prec@1",
  ),
  "camvid": ("camvid", "camvid_stats/dpn-s0", "test/miou"),
}


def test_they_stay_small_and_each_is_known():
  files = [path for path in (DOCS / "models").rglob("*") if path.is_file()]
  assert sum(path.stat().st_size for path in files) < MOST_BYTES
  assert {path.parent.name for path in files} == {*RUNS, "models"}


@pytest.mark.parametrize("name", RUNS)
def test_a_model_is_that_of_its_study(name):
  archive, run, measure = RUNS[name]
  rows = (DOCS / f"results/{archive}.jsonl").read_text().splitlines()
  [row] = [row for row in map(json.loads, rows) if row["path"] == run]
  folder = DOCS / "models" / name
  config = json.loads((folder / "config.json").read_text())
  same = ("input", "lr", "model", "schedule", "seed", "wd")
  for part in (config, row["config"]):
    part["input"]["data"]["name"] = name  # wherever it lies
    part["input"]["data"].pop("data_dir", None)
  assert [config[key] for key in same] == [row["config"][key] for key in same]
  said = re.search(r"\*\*([\d.]+)%\*\*", (folder / "README.md").read_text())
  # Trained again, by later code and on another number of cores.
  archived = 100 * row["done"]["metrics"][measure]
  assert float(said[1]) == pytest.approx(archived, abs=1)


def test_one_can_be_used():
  path = str(DOCS / "models/imagenette")
  model, variables, preprocess = vit.from_pretrained(path)
  assert preprocess.shape == (112, 112, 3)
  names, _ = labels.read(path, model.num_classes)
  assert names[0] == "tench"
  rows, cols = np.mgrid[-1:1:112j, -1:1:112j]
  image = np.stack([rows, cols, rows * cols], -1)[None].astype(np.float32)
  logits, _ = jax.jit(model.apply)(variables, image)
  # Of the run's own float32 parameters.
  want = [-0.307, -1.407, -1.044, 0.362, -1.25]
  want += [-1.172, -1.498, 0.085, 1.984, 3.378]
  np.testing.assert_allclose(logits[0], want, atol=5e-3)
