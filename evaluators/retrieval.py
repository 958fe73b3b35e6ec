"""Retrieval of texts by images and of images by texts."""

import dataclasses
import functools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from dpn import errors
from dpn.evaluators import base
from dpn.input_pipeline import pp, sources
from dpn.input_pipeline.sources import arrays
from dpn.tasks import base as tasks_base

_BLOCK = 1024  # queries whose similarities are held in memory


def recall(
  zimg: np.ndarray,
  ztxt: np.ndarray,
  image_of_text: Sequence[int],
  ks: Sequence[int] = (1, 5, 10),
) -> dict[str, float]:
  """Returns `img2txt_recall@k` and `txt2img_recall@k`, each in [0, 1].

  The share of queries with a right answer among the k most similar. An image
  may have several texts, each of which is right. Among equal similarities the
  lower index comes first, so embeddings that are all the same are no better
  than chance.

  Args:
    zimg: (images, dim).
    ztxt: (texts, dim).
    image_of_text: (texts,), the index of each text's image.
    ks: how many results are looked at.

  Raises:
    ValueError: shapes do not fit, an index is out of range, an image has no
      text, or a number is not finite.
  """
  zimg, ztxt = (np.asarray(z, np.float32) for z in (zimg, ztxt))
  owner = np.asarray(image_of_text)
  if zimg.ndim != 2 or ztxt.shape != (len(owner), zimg.shape[1]):
    raise ValueError(
      f"Got embeddings {zimg.shape} of images and {ztxt.shape} of texts, and "
      f"{len(owner)} entries of image_of_text; expected (images, dim), (texts, "
      "dim) and (texts,)."
    )
  if not np.array_equal(np.unique(owner), np.arange(len(zimg))):
    raise ValueError(
      f"image_of_text must name each of the {len(zimg)} images, from 0 to "
      f"{len(zimg) - 1}, and no other."
    )
  base.check_finite(images=zimg, texts=ztxt)
  texts = [np.flatnonzero(owner == i) for i in range(len(zimg))]
  found = {
    "img2txt": ranks(zimg, ztxt, texts),
    "txt2img": ranks(ztxt, zimg, owner[:, None]),
  }
  return {
    f"{direction}_recall@{k}": float(np.mean(rank < k))
    for direction, rank in found.items()
    for k in ks
  }


def nearest(queries: np.ndarray, keys: np.ndarray, k: int) -> np.ndarray:
  """Returns the k most similar keys of each query, best first, (queries, k).

  Among equal similarities the lower index comes first. Queries are (queries,
  dim), and keys (keys, dim); fewer than k keys are all returned.
  """
  return np.argsort(-(queries @ keys.T), axis=1, kind="stable")[:, :k]


def ranks(queries, keys, answers) -> np.ndarray:
  """Returns how many keys come before each query's first right answer.

  `answers` are each query's right keys, in order; ties go by index.
  """
  found = []
  for begin in range(0, len(queries), _BLOCK):
    block = queries[begin : begin + _BLOCK] @ keys.T
    for row, right in zip(block, answers[begin : begin + _BLOCK], strict=True):
      best = right[np.argmax(row[right])]  # the first of equal ones
      ahead = np.count_nonzero(row > row[best])
      found.append(ahead + np.count_nonzero(row[:best] == row[best]))
  return np.array(found)


def captions(
  source: sources.Source, key: str, *, once: bool = False
) -> arrays.ArraySource:
  """Returns a source's captions as examples: `text`, and its index, `owner`.

  Every example of the source is read. `key` holds one text or several; nested
  names are joined by "/". `once` refuses an image that is there twice.
  """
  flatten, rng = pp.make("flatten"), np.random.default_rng(0)
  texts, owners, seen = [], [], set()
  for index in range(len(source)):
    found = flatten(source[index], rng)
    if key not in found:
      message = errors.unknown("text_key", key, found)
      raise ValueError(f"{source.describe(index)}: {message}")
    several = np.atleast_1d(np.array(found[key], object)).tolist()
    is_text = lambda x: isinstance(x, str | bytes) and x.strip()
    if not several or not all(map(is_text, several)):
      raise ValueError(
        f"{source.describe(index)}: {key!r} holds {found[key]!r}, expected a "
        "caption or several, and none empty."
      )
    image = found.get("image", b"")
    raw = image.tobytes() if isinstance(image, np.ndarray) else image
    name = repr(found.get("id", index)), zlib.crc32(raw)
    if once and name in seen:
      raise ValueError(
        f"{source.describe(index)}: this image is there twice, and would count "
        "as two. Give all its captions in one example, as a list (see "
        "docs/image_text.md)."
      )
    seen.add(name)
    texts += several
    owners += [index] * len(several)
  columns = {"text": np.array(texts, object), "owner": np.array(owners)}
  return arrays.ArraySource(f"{source.name}, {key}", columns)


@dataclasses.dataclass(kw_only=True)
class Evaluator(base.Evaluator):
  """Reports what `recall` returns.

  Attributes:
    images: the images, in batches.
    captions: the source of the captions, see `captions`.
  """

  data: Mapping[str, Any]  # see `dpn.input_pipeline.sources.make`
  pp_img: str  # leaves `image`
  pp_txt: str  # from the caption `text` to ids
  text_key: str = "text"  # one caption or several; nested as "captions/text"
  ks: Sequence[int] = (1, 5, 10)

  def __post_init__(self):
    base.check_given(ks=self.ks)
    super().__post_init__()
    source = sources.make(self.data)
    self.images = self.open(source, f'{self.pp_img}|keep("image")')
    self.captions = captions(source, self.text_key, once=True)
    self._texts = self.open(
      self.captions, f'{self.pp_txt}|keep("text", "owner")'
    )
    self._embed = [
      self.jit(lambda v, b, i=i: self.predict_fn(v, b)[i]) for i in range(2)
    ]

  def check(self, variables, trace=jax.eval_shape):
    check = functools.partial(self.check_batch, trace=trace)
    check(self._embed[0], variables, self.images)
    check(self._embed[1], variables, self._texts, "owner")

  def run(self, variables):
    return recall(*self.embeddings(variables), self.ks)

  def embeddings(
    self, variables: tasks_base.Variables
  ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the embeddings of images and texts, and each text's image."""
    [zimg] = self.collect(self._embed[0], variables, self.images)
    ztxt, owner = self.collect(self._embed[1], variables, self._texts, "owner")
    return zimg, ztxt, owner

  def embed_texts(
    self, variables: tasks_base.Variables, texts: Sequence[str]
  ) -> np.ndarray:
    """Returns the embeddings of any texts, (texts, dim)."""
    source = arrays.ArraySource("texts", {"text": np.array(texts, object)})
    data = self.open(source, f'{self.pp_txt}|keep("text")')
    [ztxt] = self.collect(self._embed[1], variables, data)
    return ztxt
