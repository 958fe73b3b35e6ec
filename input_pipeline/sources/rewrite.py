"""Rewrites the JPEGs in a data set's records while it is prepared."""

import dataclasses
import importlib
import itertools
from collections.abc import Iterable, Iterator
from concurrent import futures

import cv2
from tensorflow_datasets.proto import tf_example_pb2

from dpn import input_pipeline
from dpn.input_pipeline.pp import lazy_image, ops_image
from dpn.input_pipeline.pp import resize as resizing

_AHEAD = 256  # records held in memory
_JPEG = b"\xff\xd8\xff"


@dataclasses.dataclass(frozen=True)
class Rewrite:
  """How to rewrite JPEGs; other images stay as they are."""

  max_side: int | None = None  # pixels; larger images are resized by area
  quality: int = 95  # of JPEGs that were resized, 1 to 100
  restart: bool = False  # whether to add restart markers

  def __post_init__(self):
    if not 1 <= self.quality <= 100 or not (self.max_side or 1) > 0:
      raise ValueError(
        f"quality must be 1 to 100 and max_side positive; got {self.quality} "
        f"and {self.max_side}."
      )
    if self.restart:
      _restart_markers()

  def __call__(self, records: Iterable[bytes]) -> Iterator[bytes]:
    """Yields serialized examples in their order, with a thread per core."""
    records = iter(records)
    with futures.ThreadPoolExecutor(input_pipeline.num_cores()) as pool:
      while ahead := [*itertools.islice(records, _AHEAD)]:
        yield from pool.map(self.record, ahead)

  def record(self, record: bytes) -> bytes:
    """Returns a serialized example with its JPEGs rewritten."""
    example = tf_example_pb2.Example.FromString(record)
    for feature in example.features.feature.values():
      values = feature.bytes_list.value
      for i, value in enumerate(values):
        if value.startswith(_JPEG):
          try:
            values[i] = self.image(value)
          except ValueError as e:
            raise ValueError(f"In the record of {_texts(example)}: {e}") from e
    return example.SerializeToString(deterministic=True)

  def image(self, data: bytes) -> bytes:
    """Returns a rewritten JPEG."""
    if self.max_side is not None:
      data = _shrink(data, self.max_side, self.quality)
    return _restart_markers().add(data) if self.restart else data


def _texts(example) -> str:
  """Returns what identifies a record to a person: its names and captions."""
  lists = (f.bytes_list.value for f in example.features.feature.values())
  return repr([x for x in itertools.chain(*lists) if not x.startswith(_JPEG)])


def _shrink(data, max_side, quality):
  """Returns a JPEG whose longer side is at most `max_side` pixels."""
  image = ops_image.decode_image(data)
  scale = max_side / max(image.shape[:2])
  if scale >= 1:
    return data
  size = tuple(max(1, round(scale * side)) for side in image.shape[:2])
  image = lazy_image.materialize(resizing.resize(image, size, "area"))
  bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
  options = [cv2.IMWRITE_JPEG_QUALITY, quality]
  return cv2.imencode(".jpg", bgr, options)[1].tobytes()


def _restart_markers():
  """Returns the module, imported here because it needs Numba."""
  try:
    return importlib.import_module("dpn.input_pipeline.sources.restart_markers")
  except ModuleNotFoundError as error:
    raise ValueError(
      "Restart markers need Numba: pip install 'dual-patchnorm[restart]'."
    ) from error
