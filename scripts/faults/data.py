"""Shows that every example of an epoch is used exactly once.

Training is cut off at random positions, and goes on each time with another
number of processes, worker processes or threads: the stream of examples must be
that of one process that nothing disturbed. Nothing is trained.
"""

import contextlib
import itertools
import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpn.input_pipeline import pipeline, sources

SIZE, EPOCHS = 97, 3
BATCH_SIZE = 12  # so epochs begin and end within batches
DATA = {"name": f"{__name__}:Numbers", "split": "train"}
PP = 'flip_lr|keep("image")'


class Numbers(sources.Source):
  """Images (1, 2, 1) that hold their own number, beside one that marks a flip.

  Being flipped at random is all that augmentation does to them.
  """

  name = "numbers"

  def __init__(self, split: str):
    del split

  def __len__(self):
    return SIZE

  def __getitem__(self, index):
    return {"image": np.array([[[index], [SIZE]]], np.int32)}


class Way(NamedTuple):
  """How a part of a run is read."""

  processes: int = 1
  workers: int = 0
  threads: int | None = None


WAYS = (
  Way(processes=2),
  Way(workers=2),
  Way(processes=4, threads=3),
  Way(workers=1),
  Way(threads=1),
)


def check(seed: int, ways: Sequence[Way] = WAYS) -> dict[str, int]:
  """Checks training, restarted once for every way, and evaluation.

  Returns how many examples it has counted in each.

  Raises:
    AssertionError: an example is missing, comes twice, or elsewhere.
  """
  steps = -(-EPOCHS * SIZE // BATCH_SIZE)
  cuts = random.Random(seed).sample(range(1, steps), len(ways))
  parts = itertools.pairwise([0, *sorted(cuts), steps])
  found = [
    _training(way, seed, begin, end)
    for way, (begin, end) in zip((Way(), *ways), parts, strict=True)
  ]
  stream = np.concatenate(found)
  whole = _training(Way(), seed, 0, steps)
  different = np.flatnonzero((stream != whole).any((1, 2, 3)))
  assert not different.size, f"position {different[0]} is another example"
  for epoch in range(EPOCHS):
    _assert_once(f"epoch {epoch}", stream[epoch * SIZE : (epoch + 1) * SIZE])
  evaluated = 0
  for processes in sorted({way.processes for way in ways}):
    images = _evaluation(processes)
    _assert_once(f"evaluation by {processes} processes", images)
    evaluated += len(images)
  return {"training": EPOCHS * SIZE, "evaluation": evaluated}


def _training(way: Way, seed: int, begin: int, end: int) -> np.ndarray:
  """Returns the images of the steps from `begin` to `end`, in order."""
  config = {
    "data": DATA,
    "pp": PP,
    "batch_size": BATCH_SIZE,
    "num_workers": way.workers,
    "num_threads": way.threads,
  }
  shares = []
  for index in range(way.processes):
    data = pipeline.training(
      config, seed=seed, process_index=index, process_count=way.processes
    )
    with contextlib.closing(data.batches(begin * BATCH_SIZE)) as batches:
      share = [next(batches)["image"].copy() for _ in range(begin, end)]
    shares.append(share)
  return np.concatenate([x for step in zip(*shares, strict=True) for x in step])


def _evaluation(processes: int) -> np.ndarray:
  """Returns the images that all processes together evaluate."""
  shares = [
    pipeline.evaluation(
      DATA,
      PP,
      BATCH_SIZE,
      process_index=index,
      process_count=processes,
    )
    for index in range(processes)
  ]
  batches = (batch for share in shares for batch in share)
  return np.concatenate([batch["image"][batch["_mask"]] for batch in batches])


def _assert_once(where: str, images: np.ndarray):
  """Checks that images are all those of the source, each once."""
  times = np.bincount(images.min((1, 2, 3)), minlength=SIZE)  # flipped or not
  wrong = [f"{i} ({n} times)" for i, n in enumerate(times) if n != 1]
  assert not wrong, f"{where}: not once: {', '.join(wrong)}"
