"""Fake data of the shapes that a config asks for; no real data are needed."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from PIL import Image

from dpn.input_pipeline import loader, pipeline, pp, sources

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
  """Returns (shape, dtype) of a batch, by running config.input.pp once."""
  return describe(config)[0]


def describe(config) -> tuple[loader.Spec, int]:
  """Returns `spec`, and how many examples there are.

  Where config.input.pp decodes images, a grey one stands in, with label 0 or a
  label map of zeros, and there are EXAMPLES; otherwise the data are opened.
  """
  pp.add_modules(config.get("pp_modules") or ())
  parts = map(config.input.get, config.input.get("data", ()))  # of a mixture
  ops = next((x.pp for x in (config.input, *parts) if x and x.get("pp")), "")
  if "decode" not in ops:
    data = pipeline.training(config.input, seed=0)
    return data.spec, data.num_examples
  example = _example("decode_labels" in ops)
  made = pp.make(ops)(example, np.random.default_rng(0))
  size = config.input.batch_size
  return {
    name: ((size, *np.shape(value)), np.asarray(value).dtype)
    for name, value in made.items()
  }, EXAMPLES


def evals(config, size: Sequence[int]) -> dict[str, Any]:
  """Returns config.evals with grey images in place of data that are decoded.

  `size`, (rows, cols), is that of the images before preprocessing.
  """
  pp.add_modules(config.get("pp_modules") or ())
  sections = config.to_dict().get("evals") or {}
  for key, section in sections.items():
    text = str([v for k, v in section.items() if k.startswith("pp_")])
    if "decode" not in text:
      continue
    fake = LabelMaps if "decode_labels" in text else Labels
    fake = f"{__name__}:{fake.__name__}"
    split = "x".join(map(str, size))
    if "data" in section:
      section["data"] = {"name": fake, "split": split}
    if isinstance(found := section.get("datasets"), Mapping):
      section["datasets"] = {
        name: (fake, *(split for _ in splits))
        for name, (_, *splits) in found.items()
      }
    section.pop("data_dir", None)
    if section.get("type", key) == "zeroshot":
      section["class_names"] = {name: ["grey"] for name in section["datasets"]}
  return sections


class Labels(sources.Source):
  """Grey images of class 0, each with a caption; the split names their size."""

  maps = False

  def __init__(self, split: str):
    self.name = f"fake data, {split}"
    self.size = [int(side) for side in split.split("x")]

  def __len__(self):
    return 8

  def __getitem__(self, index):
    return _example(self.maps, self.size)


class LabelMaps(Labels):
  """Grey images with captions and label maps of zeros."""

  maps = True


def _example(maps, size=(64, 64)):
  """Returns an undecoded example, with label 0 or a label map of zeros."""
  image, mask = _encoded("RGB", "JPEG", size), _encoded("L", "PNG", size)
  label = mask if maps else 0
  example = {"image": image, "annotation": mask, "mask": mask, **_FEATURES}
  return example | {"label": label, "labels": label, **_CAPTIONS}


def _encoded(mode, file_format, size):
  buffer = io.BytesIO()
  Image.new(mode, (size[1], size[0])).save(buffer, file_format)
  return buffer.getvalue()


def batch(shapes) -> dict[str, jax.Array]:
  """Returns random arrays of these shapes, on the devices they name."""
  rng = np.random.default_rng(0)
  return {
    name: jax.device_put(rng.uniform(size=s.shape).astype(s.dtype), s.sharding)
    for name, s in shapes.items()
  }
