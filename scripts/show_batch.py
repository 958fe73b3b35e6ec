"""Draws what the model gets to see: a batch of a config's training data.

  python -m scripts.show_batch --config configs/digits.py --out batch.png

Images are preprocessed, and mixed if config.mixup says so; underneath stands
the label, or the labels and their shares, or the caption, read back from its
token ids. Label maps are drawn over their images, with a legend. For the
picture floats are stretched linearly, black to white, over the range given
below it.
"""

import jax
import matplotlib
import numpy as np
from absl import flags
from matplotlib import figure, patches

import dpn.tasks
from dpn.input_pipeline import pipeline, pp
from dpn.input_pipeline.text import tokenizers
from dpn.scripts.show import label_maps, wrap
from dpn.trainers import cli

_SMALLEST_SHARE = 0.02  # Smaller ones are smoothing, not labels.
_SIDE = 1.4  # inches, of an image
_FONTSIZE = 7
_MOST_LINES = 8  # of a caption


def batch(
  config, count: int
) -> tuple[np.ndarray, list[str], str, list[tuple[str, np.ndarray]]]:
  """Returns the first `count` training examples of a config.

  They are images (count, rows, cols, channels) in [0, 1], their labels in words
  or captions, a line on the range of their values and, of label maps, a legend:
  names and colours.

  Raises:
    ValueError, OSError: the data are not there, or are no images.
  """
  pp.add_modules(config.get("pp_modules") or ())
  seed = config.get("seed", 0)
  data = pipeline.training(
    {**config.input, "batch_size": count, "repeats": 1}, seed=seed
  )
  batches = data.batches()
  arrays = next(batches)
  batches.close()
  if config.get("mixup"):
    arrays = dpn.tasks.make(config).augment(jax.random.key(seed), arrays)
  image, labels = arrays["image"], arrays.get("labels", arrays.get("label"))
  names = data.examples.source.class_names("label")
  if labels is None:
    labels = [()] * count
  image, legend = np.asarray(image, np.float32), []
  if image.ndim != 4:
    raise ValueError(
      f"The batch's images have shape {image.shape}, expected (batch, rows, "
      "cols, channels). Embeddings cannot be drawn: give the config that reads "
      "the images themselves."
    )
  low, high = image.min(), image.max()
  spec = config.input.get("pp", "a mixture")
  caption = f"{spec}\n{image.shape}, values {low:.4g} to {high:.4g}"
  image = (image - low) / max(high - low, 1e-9)
  if np.ndim(labels) == 3:  # label maps
    names = _class_names(config)
    legend = label_maps.legend(labels, names)
    image = label_maps.overlay(image, labels, len(names))
    labels = [label_maps.shares(label, len(names)) for label in labels]
  if "text" in data.vocabularies:
    tokenizer = tokenizers.make(data.vocabularies["text"].model)
    texts = [tokenizer.decode(ids) for ids in arrays["text"]]
  else:
    texts = [describe(np.asarray(label), names) for label in labels]
  return image, texts, caption, legend


def _class_names(config) -> list[str]:
  """Returns names that an evaluator has for the classes, or numbers."""
  for section in (config.get("evals") or {}).values():
    if section.get("class_names"):
      return list(section.class_names)
  return [str(k) for k in range(config.num_classes)]


def describe(label: np.ndarray, names: list[str] | None) -> str:
  """Returns a label in words: `7`, or `3 0.62 + 7 0.38` where it is mixed."""
  name = lambda k: names[k] if names else str(k)
  if label.ndim != 1:
    return name(label) if label.size == 1 else ""
  present = np.flatnonzero(label > _SMALLEST_SHARE)
  present = present[np.argsort(-label[present], kind="stable")][:3]
  if len(present) == 1:
    return name(present[0])
  return " + ".join(f"{name(k)} {label[k]:.2f}" for k in present)


def sheet(
  images: np.ndarray,
  texts: list[str],
  caption: str,
  legend: list[tuple[str, np.ndarray]],
  cols: int,
) -> figure.Figure:
  """Returns the images in rows of `cols`, each with its text underneath."""
  rows = -(-len(images) // cols)
  texts = [_in_lines(text.replace(" + ", "\n+ ")) for text in texts]
  lines = 1 + max(text.count("\n") for text in texts)
  below = 0.1 + 0.12 * lines  # Inches, as the following.
  legend_cols = min(cols, len(legend)) or 1
  foot = 0.4 + 0.16 * -(-len(legend) // legend_cols)
  height = (_SIDE + below) * rows + foot + 0.05
  fig = figure.Figure(figsize=(_SIDE * cols, height), dpi=120)
  axes = fig.subplots(rows, cols, squeeze=False).ravel()
  for ax in axes:
    ax.set_axis_off()
  for ax, image, text in zip(axes, images, texts, strict=False):
    # One channel is grey; more than three are not shown.
    shown = image[..., :3] if image.shape[-1] >= 3 else image[..., 0]
    ax.imshow(shown, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    kw = {"transform": ax.transAxes, "fontsize": _FONTSIZE}
    kw |= {"ha": "center", "va": "top", "parse_math": False}
    ax.text(0.5, -0.04, text, **kw)
  fig.text(0.01, 0.005, caption, fontsize=6, family="monospace", wrap=True)
  fig.legend(
    handles=[patches.Patch(color=c, label=name) for name, c in legend],
    bbox_to_anchor=(0.5, 0.35 / height),
    loc="lower center",
    ncols=legend_cols,
    fontsize=7,
    frameon=False,
  )
  fig.subplots_adjust(
    0.01, (foot + below) / height, 0.99, 0.99, 0.04, below / _SIDE
  )
  return fig


def _in_lines(text):
  """Returns text broken into lines that an image is wide enough for."""
  lines = (
    wrap.wrap(line, 0.93 * _SIDE, _FONTSIZE, _MOST_LINES)
    for line in text.split("\n")
  )
  return "\n".join(lines)


def main():
  matplotlib.use("agg")
  images = batch(_CONFIG.value, _ROWS.value * _COLS.value)
  sheet(*images, _COLS.value).savefig(_OUT.value)
  print(f"Wrote {_OUT.value}.")


if __name__ == "__main__":
  _CONFIG = cli.define_config()
  _OUT = flags.DEFINE_string("out", "batch.png", "Where to write the picture.")
  _ROWS = flags.DEFINE_integer("rows", 4, "Rows of images.", lower_bound=1)
  _COLS = flags.DEFINE_integer("cols", 8, "Images in a row.", lower_bound=1)
  cli.run(main)
