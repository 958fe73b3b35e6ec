"""Models of big_vision, timm and transformers: their arrays and logits.

../testdata/README.md says how they were made.
"""

import json
import pathlib

import jax
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from dpn import trees
from dpn.conftest import part
from dpn.models import vit
from dpn.weights import files, load
from dpn.weights import metadata as file_metadata

TESTDATA = pathlib.Path(__file__).parents[1] / "testdata"
TORCH_GOLDEN = dict(np.load(TESTDATA / "foreign_vit.npz"))
IMAGE = TORCH_GOLDEN.pop("image")  # of the models of timm and transformers
GOLDEN = {**np.load(TESTDATA / "big_vision_vit.npz"), **TORCH_GOLDEN}
# As the models were made, see the README in testdata.
SIZE = {"depth": 2, "num_heads": 2}
BIG_VISION = {**SIZE, "width": 16, "mlp_dim": 24, "patch_size": (4, 4)}
TORCH = {**SIZE, "width": 8, "mlp_dim": 12, "patch_size": (3, 3)}
EXACT, HF_EPS = {"gelu": "exact"}, {"norm_kw": {"eps": 1e-12}}
NO_HEAD = {"num_classes": None}
OPTIONS = {
  "tok": {**BIG_VISION, "pool_type": "tok", "rep_size": True},
  "map": {**BIG_VISION, "pool_type": "map"},
  "timm_tok": {**TORCH, "pool_type": "tok", **EXACT},
  "timm_no_embed_class": {**TORCH, "pool_type": "tok", **EXACT},
  "timm_gap": {**TORCH, "pool_type": "gap", "stem_ln": "post", **EXACT},
  "timm_map": {**TORCH, "pool_type": "map"},
  "hf_classifier": {**TORCH, "pool_type": "tok", **EXACT, **HF_EPS},
  "hf_model": {**TORCH, "pool_type": "tok", "rep_size": True, **NO_HEAD},
}
LIBRARIES = [kind for kind in OPTIONS if "_" in kind]
# What the default of the library would have said otherwise.
CONFIGS = {
  "timm_map": {
    "architecture": "vit_base_patch32_siglip_256",
    "model_args": {"embed_dim": 8, "depth": 2, "num_heads": 2},
    "pretrained_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3},
  },
  "hf_model": {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6},
}


def golden(kind):
  """Returns a model's arrays by the names of its library."""
  return part(GOLDEN, f"{kind}/param/")


def make(kind="tok", **kw):
  return vit.Model(**{"num_classes": 5, **OPTIONS[kind], **kw})


def shapes(rows_px=8, cols_px=12, kind="tok", **kw):
  """Returns the parameters' shapes for images of this size."""
  return shapes_of(make(kind, **kw), (1, rows_px, cols_px, 3))


def shapes_of(model, image=IMAGE.shape):
  image = jax.ShapeDtypeStruct(image, np.float32)
  return jax.eval_shape(model.init, jax.random.key(0), image)["params"]


def write(tmp_path, flat, prefix="params/"):
  """Returns the path of a file as big_vision writes it."""
  path = str(tmp_path / "checkpoint.npz")
  np.savez(path, **{prefix + name: x for name, x in flat.items()})
  return path


def write_torch(tmp_path, kind, flat=None):
  """Returns the path of a file as it lies in a library's folder."""
  safetensors.numpy.save_file(
    flat or golden(kind), tmp_path / "model.safetensors", {"format": "pt"}
  )
  if kind in CONFIGS:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[kind]))
  return str(tmp_path / "model.safetensors")


def write_ours(tmp_path, image=IMAGE.shape, pp=None, **kw):
  """Returns the path of a random model of ours, and its parameters."""
  model = vit.Model(5, **{**TORCH, "stem_ln": "dpn", "pool_type": "tok", **kw})
  params = draw(shapes_of(model, image), mean=1)
  return save(tmp_path / "ours.safetensors", model, params, pp=pp), params


def save(path, model, params, batch_stats=None, pp=None):
  """Writes a model of ours; returns the path."""
  said = file_metadata.metadata(vit.options(model), None, pp=pp)
  files.save_params(str(path), params, batch_stats, said)
  return str(path)


def draw(shapes, mean=0):
  """Returns random arrays of these shapes."""
  rng = np.random.RandomState(0)
  return jax.tree.map(
    lambda s: mean + 0.3 * rng.randn(*s.shape).astype(np.float32), shapes
  )


def randomized(model, seed=0):
  """Returns a PyTorch model for evaluation, its parameters random."""
  torch = pytest.importorskip("torch")
  generator = torch.Generator().manual_seed(seed)
  for x in model.parameters():
    x.data = 0.3 * torch.randn(x.shape, generator=generator)
  return model.eval()


def run_torch(model, image):
  """Returns what a PyTorch model gives for images (batch, rows, cols, 3)."""
  torch = pytest.importorskip("torch")
  with torch.no_grad():
    return model(torch.from_numpy(image.transpose(0, 3, 1, 2).copy()))


def read(path, params, **kw):
  """Returns `load.load_variables` of a model without running statistics."""
  return load.load_variables(path, {"params": params}, **kw)["params"]


def load_into(model, path, image=IMAGE.shape, **kw):
  """Returns `read` of a model's parameters, its options compared."""
  shapes = shapes_of(model, image)
  return read(path, shapes, options=vit.options(model), **kw)


def logits(model, path):
  """Returns what a model makes of IMAGE with the arrays of a file."""
  return jax.jit(model.apply)({"params": load_into(model, path)}, IMAGE)[0]


def assert_logits(got, kind):
  want = GOLDEN[f"{kind}/logits"]
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def metadata(path):
  with safetensors.safe_open(path, "numpy") as file:
    return file.metadata()


def sevens(tree):
  """Returns arrays that no file has."""
  return jax.tree.map(lambda s: np.full(s.shape, 7, s.dtype), tree)


def assert_equal(got, want):
  got = trees.flatten(got)
  assert got.keys() == want.keys()
  for name, x in want.items():
    assert isinstance(got[name], np.ndarray)
    np.testing.assert_array_equal(got[name], x, err_msg=name)


def stack(flat):
  """Returns the names and arrays of a scanned model of two blocks."""
  first = "Transformer/encoderblock_0/"
  blocks = {k[len(first) :] for k in flat if k.startswith(first)}
  return {k: x for k, x in flat.items() if "encoderblock" not in k} | {
    f"Transformer/encoderblock/{k}": np.stack(
      [flat[f"Transformer/encoderblock_{i}/{k}"] for i in range(2)]
    )
    for k in blocks
  }


def bilinear(grid, new):
  """Returns (new, new, width), the corners of both grids coinciding."""
  old, out = len(grid), np.zeros((new, new, grid.shape[-1]))
  for i, j in np.ndindex(new, new):
    y, x = (k * (old - 1) / (new - 1) for k in (i, j))
    for a, b in np.ndindex(old, old):
      out[i, j] += max(0, 1 - abs(y - a)) * max(0, 1 - abs(x - b)) * grid[a, b]
  return out
