"""Positions for images of another size, as the file's own library has them."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from dpn.models import vit
from dpn.weights import conftest as testing
from dpn.weights import positions, resolution, vit_params

TABLE = np.float32([0, 1, 4, 9, 16, 25, 36, 49, 64]).reshape(1, 9, 1)
# torch.nn.functional.interpolate(…, mode="bicubic", align_corners=False,
# antialias=…) of PyTorch 2.14.1: to 2 × 2, and to 4 × 2.
BICUBIC = {
  "bicubic": (
    [1.43076, 6.52237, 32.39737, 53.18076],
    *[[-0.60733, 1.93058, 3.52005, 11.89499, 21.5278, 39.02786]],
  ),
  "cubic": (
    [2.87117, 8.19785, 30.28452, 47.04452],
    *[[-0.33771, 1.99045, 5.0106, 12.38143, 22.62153, 37.33738]],
  ),
}


@pytest.mark.parametrize("method", BICUBIC)
def test_as_in_pytorch(method):
  for new, want in zip([(2, 2), (4, 2)], BICUBIC[method], strict=True):
    got = positions.resize_grid(TABLE, (3, 3), new, False, method)
    assert got.shape == (1, new[0] * new[1], 1)
    np.testing.assert_allclose(got.ravel()[: len(want)], want, atol=1e-5)


@pytest.mark.parametrize("kind", testing.LIBRARIES)
def test_how(tmp_path, kind):
  model = vit_params.read(testing.write_torch(tmp_path, kind), {"num_heads": 2})
  method = {"timm": "cubic", "hf": "bicubic"}[kind.split("_")[0]]
  assert model.resizing == method
  options = {**model.options, "registers": 4}
  file = dataclasses.make_dataclass("File", ["layout"])
  assert positions.of_library(file("hf"), options) == "cubic"
  assert positions.of_library(file("ours"), options) == "corners"
  assert positions.of_library(file("naflex_vit"), options) == "linear"
  model = resolution.at_resolution(model, (6, 12))
  assert (model.grid, model.image_shape) == ((2, 4), (1, 6, 12, 3))
  table = model.arrays["pos_embedding"]
  assert table.shape[1] == 8 + model.cls_row


def test_a_processor_that_crops_to_another_size(tmp_path, caplog):
  """DINOv2's positions are for 518 px, and its processor makes 224."""
  image = {"image_mean": 0.5, "image_std": 0.5, "do_resize": False}
  image |= {"do_center_crop": True, "crop_size": {"height": 6, "width": 12}}
  path = testing.write_torch(tmp_path, "hf_model")
  (tmp_path / "preprocessor_config.json").write_text(json.dumps(image))
  with caplog.at_level("WARNING"):
    model, variables, preprocess = vit.from_pretrained(path, num_heads=2)
  assert "from 3×3 to 2×4" in caplog.text
  assert preprocess.shape == (6, 12, 3)
  image = np.random.RandomState(0).randn(2, 6, 12, 3)
  assert jax.jit(model.apply)(variables, image)[0].shape == (2, 8)
  old = testing.golden("hf_model")["embeddings.position_embeddings"][:, 1:]
  want = positions.resize_grid(old, (3, 3), (2, 4), False, "bicubic")
  np.testing.assert_allclose(
    variables["params"]["pos_embedding"][:, -8:], want, rtol=1e-6
  )
