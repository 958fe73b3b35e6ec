"""What docs/library.md shows runs, and so does the notebook."""

import json
import pathlib
import re

import jax
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import PIL.Image
import pytest

import dpn.tasks
from dpn.models import vit
from dpn.trainers import conftest
from dpn.weights import files

SHORTER = {"epochs=12": "epochs=5", "steps=300": "steps=100"}
DOCS = pathlib.Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module", name="run")
def _run(tmp_path_factory):
  """Returns a folder as a run leaves it, of random parameters."""
  folder = tmp_path_factory.mktemp("run")
  config = conftest.tiny_config()
  model = dpn.tasks.make(config).model
  image = jax.ShapeDtypeStruct((1, 16, 16, 1), np.float32)
  shapes = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
  rng = np.random.RandomState(0)
  params = jax.tree.map(lambda s: 0.3 * rng.normal(size=s.shape), shapes)
  files.save_params(str(folder / "params.safetensors"), params)
  (folder / "config.json").write_text(config.to_json())
  return folder, params


def test_a_run_says_everything(run):
  folder, params = run
  model, variables, preprocess = vit.from_pretrained(str(folder))
  assert vit.options(model) == vit.options(
    dpn.tasks.make(conftest.tiny_config()).model
  )
  for got, want in zip(
    jax.tree.leaves(variables["params"]), jax.tree.leaves(params), strict=True
  ):
    np.testing.assert_array_equal(got, np.float32(want))
  assert preprocess.pp == conftest.PP
  assert preprocess.shape == (16, 16, 1)
  assert (preprocess.pixels.mean, preprocess.assumed) == ((0.5,) * 3, ())


def test_library(run, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "runs").mkdir()
  (tmp_path / "runs" / "digits").symlink_to(run[0])
  photo = np.random.RandomState(0).randint(0, 256, (30, 20), np.uint8)
  PIL.Image.fromarray(photo).save("photo.png")
  text = (DOCS / "library.md").read_text()
  names = {}
  for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
    exec(block, names)
  # As many images as the data have, so the accuracy is one of these.
  assert round(32 * names["metrics"]["prec@1"], 5) in range(33)
  assert names["metrics"].keys() >= {"loss", "digits_1shot", "digits_5shot"}
  logits = names["model"].apply(names["variables"], names["batch"])[0]
  np.testing.assert_allclose(names["logits"], logits, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_notebook(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  mpl.use("agg")
  cells = json.loads((DOCS / "notebook.ipynb").read_text())["cells"]
  names = {}
  for cell in cells:
    if cell["cell_type"] == "code":
      assert not cell["outputs"]
      source = "".join(cell["source"])
      for long, short in SHORTER.items():
        source = source.replace(long, short)
      exec(source, names)
  assert names["accuracy"] > 0.6
  assert names["probe"] > 0.4
  assert names["parity"] > 0.85
  plain, dual = names["results"]["none"], names["results"]["dpn"]
  assert plain["before"] == pytest.approx(float(names["accuracy"]), abs=0.005)
  assert min(plain["after"], dual["after"]) > 0.55
  # A LayerNorm of patches takes their contrast away.
  assert dual["faint"] > plain["faint"] + 0.2
  assert plt.get_fignums() == [1]
  plt.close("all")
