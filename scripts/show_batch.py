"""Draws a batch of a config's training data, as the model sees it.

  python -m scripts.show_batch --config configs/digits.py --out batch.png

Images are preprocessed, then changed as config.mixup and config.augment say.
Below each is its label, its labels with their shares, or its caption, decoded
from the token ids. Label maps are drawn over their images, with a legend. The
range of values given at the bottom is stretched linearly to black and white.
"""

import jax
import matplotlib
import numpy as np
from absl import flags

import dpn.tasks
from dpn.input_pipeline import pipeline, pp
from dpn.input_pipeline.text import tokenizers
from dpn.scripts.results import output
from dpn.scripts.show import label_maps, sheet
from dpn.trainers import cli

_SMALLEST_SHARE = 0.02  # Smaller ones are smoothing, not labels.


def batch(
  config, count: int
) -> tuple[np.ndarray, list[str], str, list[tuple[str, np.ndarray]]]:
  """Returns the first `count` training examples of a config.

  Returns:
    Images (count, rows, cols, channels) in [0, 1]; their labels in words, or
    captions; a line about the range of their values; and names and colours of
    label maps.

  Raises:
    ValueError, OSError: the data are missing, or are not images.
  """
  pp.add_modules(config.get("pp_modules") or ())
  seed = config.get("seed", 0)
  data = pipeline.training(
    {**config.input, "batch_size": count, "repeats": 1}, seed=seed
  )
  batches = data.batches()
  arrays = next(batches)
  batches.close()
  if config.get("mixup") or config.get("augment"):
    arrays = dpn.tasks.make(config).augment(jax.random.key(seed), arrays)
  image, labels = arrays.get("image"), arrays.get("labels", arrays.get("label"))
  names = config.get("class_names")
  legend = []
  if labels is None:
    labels = [()] * count
  if np.ndim(image) != 4:
    shapes = {name: np.shape(x) for name, x in arrays.items()}
    raise ValueError(
      'Expected "image" of shape (batch, rows, cols, channels), got a batch of '
      f"{shapes}. Embeddings cannot be drawn: give the config that reads the "
      "images themselves."
    )
  spec = config.input.get("pp", "a mixture")
  values = f"values {image.min():.4g} to {image.max():.4g}"
  image = sheet.stretched(image)
  caption = f"{spec}\n{image.shape}, {values}"
  if np.ndim(labels) == 3:  # label maps
    names = _class_names(config)
    legend = label_maps.legend(labels, names)
    drawn = label_maps.in_colour(labels, len(names))
    image = 0.45 * image.mean(-1, keepdims=True) + 0.55 * drawn
    labels = [label_maps.shares(label, len(names)) for label in labels]
  if "text" in data.vocabularies:
    tokenizer = tokenizers.make(data.vocabularies["text"].model)
    texts = [tokenizer.decode(ids) for ids in arrays["text"]]
  else:
    names = names or data.examples.source.class_names("label")
    texts = [describe(np.asarray(label), names) for label in labels]
  return image, texts, caption, legend


def _class_names(config) -> list[str]:
  """Returns the class names that an evaluator has, or else numbers."""
  for section in (config.get("evals") or {}).values():
    if section.get("class_names"):
      return list(section.class_names)
  return [str(k) for k in range(config.num_classes)]


def describe(label: np.ndarray, names: list[str] | None) -> str:
  """Returns a label in words: `7`, or `3 0.62 + 7 0.38` if it is mixed."""
  name = lambda k: names[k] if names else str(k)
  if label.ndim != 1:
    return name(label) if label.size == 1 else ""
  present = np.flatnonzero(label > _SMALLEST_SHARE)
  present = present[np.argsort(-label[present], kind="stable")][:3]
  if len(present) == 1:
    return name(present[0])
  return " + ".join(f"{name(k)} {label[k]:.2f}" for k in present)


def main():
  matplotlib.use("agg")
  cols = _COLS.value
  images, texts, caption, legend = batch(_CONFIG.value, _ROWS.value * cols)
  cells = [
    sheet.Cell(text.replace(" + ", "\n+ "), image)
    for image, text in zip(images, texts, strict=True)
  ]
  fig = sheet.draw(cells, cols, caption=caption, legend=legend)
  output.save(fig, _OUT.value)


if __name__ == "__main__":
  _CONFIG = cli.define_config()
  _OUT = flags.DEFINE_string("out", "batch.png", "Where to write the picture.")
  _ROWS = flags.DEFINE_integer("rows", 4, "Rows of images.", lower_bound=1)
  _COLS = flags.DEFINE_integer("cols", 8, "Images in a row.", lower_bound=1)
  cli.run(main)
