"""Zero-shot classification: the class whose prompts are the most similar.

As in CLIP (arXiv 2103.00020, Section 3.1.4), the embedding of a class is the
mean of its prompts' embeddings of length 1, normalized to length 1 again.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from dpn import errors
from dpn.evaluators import base, retrieval
from dpn.input_pipeline import pp, sources
from dpn.input_pipeline.sources import arrays
from dpn.input_pipeline.text import prompts


def class_embeddings(
  ztxt: np.ndarray, classes: np.ndarray, num_classes: int
) -> np.ndarray:
  """Returns (num_classes, dim) from texts (texts, dim) and their classes."""
  base.check_finite(texts=ztxt)
  sums = np.zeros((num_classes, ztxt.shape[1]), np.float64)
  np.add.at(sums, classes, ztxt)
  norms = np.linalg.norm(sums, axis=1, keepdims=True)
  return np.float32(sums / np.maximum(norms, 1e-8))


@dataclasses.dataclass(kw_only=True)
class Evaluator(base.Evaluator):
  """Reports `<data set>_prec@1` and `<data set>_prec@5`, in [0, 1].

  Class names are the data set's own unless `class_names` has others for it: a
  list, or the name of one in `dpn.input_pipeline.text.prompts`. It must have
  some if an op of `pp_img` may change `label`: an op that names it, or one of
  VTAB's or of your own.
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
    for key in self.class_names:
      errors.check_known("data set in class_names", key, self.datasets)
    for key, (name, split) in self.datasets.items():
      data = sources.named(name, self.data_dir) | {"split": split}
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
      templates = prompts.templates(self.templates)
      filled, classes = prompts.fill(names, templates, self.canonicalize)
      too_many = own_names is not None and len(names) > len(own_names)
      if (own_count or 0) > len(names) or too_many:
        raise ValueError(
          f"The data set {name!r} has {own_count} classes, but there "
          f"are {len(names)} names for {key!r}: give one for each label."
        )
      plain = lambda names: [prompts.canonicalize(str(x)) for x in names]
      own, given = plain(own_names or names), plain(names)
      if own != given and sorted(own) == sorted(given):
        first = next(i for i, x in enumerate(own) if x != given[i])
        raise ValueError(
          f"class_names of {key!r} are in another order than the labels: label "
          f"{first} is {own_names[first]!r} in the data, {names[first]!r} "
          "there. Leave them out: the data have their own names."
        )
      columns = {"text": np.array(filled, object)}
      columns["label"] = np.array(classes, np.int32)
      source = arrays.ArraySource(f"prompts for {key}", columns)
      texts = self.open(source, f'{self.pp_txt}|keep("text", "label")')
      self._datasets[key] = images, texts, len(names)
    self._embed = [
      self.jit(lambda v, b, i=i: self.predict_fn(v, b)[i]) for i in range(2)
    ]

  def check(self, variables, trace=jax.eval_shape):
    check = functools.partial(self.check_batch, trace=trace)
    for images, texts, _ in self._datasets.values():
      check(self._embed[0], variables, images, "label")
      check(self._embed[1], variables, texts, "label")

  def run(self, variables):
    metrics = {}
    for name, (images, texts, num_classes) in self._datasets.items():
      ztxt, classes = self.collect(self._embed[1], variables, texts, "label")
      of_classes = class_embeddings(ztxt, classes, num_classes)
      zimg, label = self.collect(self._embed[0], variables, images, "label")
      unnamed = np.count_nonzero((label < 0) | (label >= num_classes))
      if unnamed:
        raise ValueError(
          f"{name}: {unnamed} labels are not from 0 to {num_classes - 1}, "
          "which the class names stand for."
        )
      base.check_finite(**{f"images of {name}": zimg})
      rank = retrieval.ranks(zimg, of_classes, label[:, None])
      metrics[f"{name}_prec@1"] = np.mean(rank < 1)
      metrics[f"{name}_prec@5"] = np.mean(rank < 5)
    return metrics
