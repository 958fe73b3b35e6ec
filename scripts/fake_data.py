"""Fake batches of the shapes that a config asks for; no data needed."""

import io

import jax
import numpy as np
from PIL import Image

from dpn.input_pipeline import loader, pipeline, pp

# What VTAB's labels are made of, see input_pipeline.pp.ops_vtab.
_FEATURES = {
  "label_x_position": 0,
  "label_orientation": 0,
  "label_azimuth": 0,
  "label_elevation": 0,
  "objects": {
    "size": [0] * 3,
    "pixel_coords": [[0, 0, 9]] * 3,
    "location": [[0, 0, 9]] * 3,
    "type": [0] * 3,
  },
}
_CAPTIONS = {"text": "grey", "captions": {"text": ["grey"]}}
EXAMPLES = 1_281_167  # as ImageNet-1k, for durations given in epochs


def spec(config) -> loader.Spec:
  """Returns (shape, dtype) of a batch, by running config.input.pp once.

  Where that decodes images, a grey one will do, with label 0 or a label map of
  zeros; otherwise the data are opened.
  """
  pp.add_modules(config.get("pp_modules") or ())
  if "decode" not in config.input.pp:
    return pipeline.training(config.input, seed=0).spec
  image, mask = _encoded("RGB", "JPEG"), _encoded("L", "PNG")
  example = {"image": image, "annotation": mask, "mask": mask, **_FEATURES}
  label = mask if "decode_labels" in config.input.pp else 0
  example |= {"label": label, "labels": label, **_CAPTIONS}
  made = pp.make(config.input.pp)(example, np.random.default_rng(0))
  return {
    name: ((config.input.batch_size, *np.shape(value)), np.asarray(value).dtype)
    for name, value in made.items()
  }


def _encoded(mode, file_format):
  buffer = io.BytesIO()
  Image.new(mode, (64, 64)).save(buffer, file_format)
  return buffer.getvalue()


def batch(shapes) -> dict[str, jax.Array]:
  """Returns random arrays of these shapes, on the devices they name."""
  rng = np.random.default_rng(0)
  return {
    name: jax.device_put(rng.uniform(size=s.shape).astype(s.dtype), s.sharding)
    for name, s in shapes.items()
  }
