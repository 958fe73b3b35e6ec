"""Every example of an epoch is used exactly once, also across restarts.

Reading is cut off at random positions and goes on with another number of
processes, worker processes or threads: the stream must be that of one process
that nothing disturbed.
"""

import contextlib
import itertools
import random

import numpy as np
import pytest

from dpn.input_pipeline import pipeline, sources

SIZE, EPOCHS, BATCH_SIZE = 97, 3, 12  # epochs begin and end within batches
DATA = {"name": f"{__name__}:Numbers", "split": "train"}
PP = 'flip_lr|keep("image")'
THREADS = [{"processes": 2}, {"processes": 4, "threads": 3}, {"threads": 1}]
WORKERS = [{"workers": 2}, {"processes": 2, "workers": 1}]


class Numbers(sources.Source):
  """Images (1, 2, 1): their own number, and beside it one that marks a flip."""

  name = "numbers"

  def __init__(self, split: str):
    del split

  def __len__(self):
    return SIZE

  def __getitem__(self, index):
    return {"image": np.array([[[index], [SIZE]]], np.int32)}


def _read(begin, end, processes=1, workers=0, threads=None):
  """Returns the images of the steps from `begin` to `end`, in order."""
  config = {"data": DATA, "pp": PP, "batch_size": BATCH_SIZE}
  config |= {"num_workers": workers, "num_threads": threads}
  shares = []
  for index in range(processes):
    data = pipeline.training(
      config, seed=0, process_index=index, process_count=processes
    )
    with contextlib.closing(data.batches(begin * BATCH_SIZE)) as batches:
      images = [next(batches)["image"].copy() for _ in range(begin, end)]
    shares.append(images)
  return np.concatenate([x for step in zip(*shares, strict=True) for x in step])


def _times(images):
  """Returns how often each number comes, flipped or not."""
  return np.bincount(images.min((1, 2, 3)), minlength=SIZE).tolist()


@pytest.mark.parametrize(
  "ways", [THREADS, pytest.param(WORKERS, marks=pytest.mark.slow)]
)
def test_training(ways):
  steps = -(-EPOCHS * SIZE // BATCH_SIZE)
  cuts = sorted(random.Random(0).sample(range(1, steps), len(ways)))
  parts = itertools.pairwise([0, *cuts, steps])
  found = [
    _read(begin, end, **way)
    for way, (begin, end) in zip(({}, *ways), parts, strict=True)
  ]
  stream = np.concatenate(found)
  np.testing.assert_array_equal(stream, _read(0, steps))
  for epoch in range(EPOCHS):
    part = stream[epoch * SIZE : (epoch + 1) * SIZE]
    assert _times(part) == [1] * SIZE
