"""Zero-shot classification: the class whose prompts are the most similar.

After CLIP (arXiv 2103.00020, Section 3.1.4): the embedding of a class is the
mean of those of its prompts, each of length 1, made of length 1 again.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from dpn.evaluators import base
from dpn.input_pipeline import pp
from dpn.input_pipeline.sources import arrays
from dpn.input_pipeline.text import prompts


def class_embeddings(
  ztxt: np.ndarray, classes: np.ndarray, num_classes: int
) -> np.ndarray:
  """Returns (num_classes, dim) from texts (texts, dim) and their classes."""
  base.check_finite(ztxt)
  sums = np.zeros((num_classes, ztxt.shape[1]), np.float64)
  np.add.at(sums, classes, ztxt)
  norms = np.linalg.norm(sums, axis=1, keepdims=True)
  return np.float32(sums / np.maximum(norms, 1e-8))


@dataclasses.dataclass(kw_only=True)
class Evaluator(base.Evaluator):
  """Reports `<data set>_prec@1` and `<data set>_prec@5`, in [0, 1].

  Class names are the data set's own unless `class_names` has others for it,
  which are the name of some in `dpn.input_pipeline.text.prompts`, or a list. It
  needs them where an op of `pp_img` may change `label`: one that names it, or
  one of VTAB's or of your own.
  """

  datasets: Mapping[str, tuple[str, str]]  # name → (data set, split)
  pp_img: str  # leaves `image` and an integer `label`
  pp_txt: str  # from the prompt `text` to ids
  class_names: Mapping[str, str | Sequence[str]] = dataclasses.field(
    default_factory=dict
  )
  templates: str | Sequence[str] = "name"  # see `prompts.templates`
  canonicalize: bool = True  # see `prompts.canonicalize`
  data_dir: str | None = None  # where TFDS data sets are

  def __post_init__(self):
    super().__post_init__()
    self._datasets = {}
    for key, (name, split) in self.datasets.items():
      data = {"name": name, "split": split, "data_dir": self.data_dir}
      images = self.open(data, f'{self.pp_img}|keep("image", "label")')
      own_names = own_count = None
      if pp.make(self.pp_img).leaves("label"):
        source = images.examples.source
        own_names = source.class_names("label")
        own_count = source.num_classes("label")
      names = self.class_names.get(key) or own_names
      if names is None:
        raise ValueError(
          f"The data set {name!r} has no names of its classes, or an op of "
          "pp_img may change its labels: give names, or the name of a list, as "
          f"class_names={{{key!r}: …}}."
        )
      names = prompts.class_names(names)
      filled = prompts.fill(
        names, prompts.templates(self.templates), self.canonicalize
      )
      if (own_count or 0) > len(names):
        raise ValueError(
          f"The data set {name!r} has {own_count} classes, but there "
          f"are {len(names)} names for {key!r}: give one for each label."
        )
      columns = dict(zip(("text", "label"), map(_column, filled), strict=True))
      texts = self.open(
        arrays.ArraySource(f"prompts for {key}", columns),
        f'{self.pp_txt}|keep("text", "label")',
      )
      self._datasets[key] = images, texts, len(names)
    self._embed_image = lambda v, b: self.predict_fn(v, b)[0]
    self._embed_text = self.jit(lambda v, b: self.predict_fn(v, b)[1])
    self._hits = self.jit(self._score)

  def _score(self, variables, batch, of_classes):
    """Counts those among the first 1 and 5, all, and two kinds of bad ones.

    These are labels without a name, and embeddings that are not finite.
    """
    label, mask = batch["label"], batch["_mask"]
    zimg = self._embed_image(variables, {"image": batch["image"]})
    similar = zimg @ of_classes.T  # (batch, classes)
    right = jnp.take_along_axis(similar, label[:, None], axis=1)
    # Of equal similarities the class with the lower index comes first.
    before = jnp.arange(similar.shape[1])[None] < label[:, None]
    ahead = (similar > right) | ((similar == right) & before)
    rank = jnp.sum(ahead, axis=1)
    count = lambda x: jnp.sum(jnp.where(mask, x, False))
    unnamed = (label < 0) | (label >= similar.shape[1])
    infinite = ~jnp.isfinite(zimg).all(axis=1)
    counts = rank < 1, rank < 5, jnp.ones_like(mask), unnamed, infinite
    return jnp.stack([*map(count, counts)])

  def check(self, variables):
    for images, texts, _ in self._datasets.values():
      self.check_batch(self._embed_image, variables, images, "label")
      self.check_batch(self._embed_text, variables, texts, "label")

  def run(self, variables):
    metrics = {}
    for name, (images, texts, num_classes) in self._datasets.items():
      ztxt, classes = self.collect(self._embed_text, variables, texts, "label")
      of_classes = class_embeddings(ztxt, classes, num_classes)
      first, first_5, every, unnamed, infinite = sum(
        np.float64(jax.device_get(self._hits(variables, batch, of_classes)))
        for batch in self.batches(images)
      )
      if unnamed:
        raise ValueError(
          f"{name}: {unnamed:.0f} labels are not from 0 to "
          f"{num_classes - 1}, which the class names stand for."
        )
      if infinite:
        raise ValueError(
          f"{name}: the embeddings of {infinite:.0f} images are not finite, so "
          "training diverged, or the data are damaged."
        )
      metrics[f"{name}_prec@1"] = first / every
      metrics[f"{name}_prec@5"] = first_5 / every
    return metrics


def _column(values):
  return np.array(values, object if isinstance(values[0], str) else np.int32)
