"""Shifts and flips against padding and slicing in NumPy."""

import jax
import numpy as np
import pytest

from dpn import augment

IMAGE = np.random.default_rng(0).normal(size=(64, 5, 6, 2)).astype(np.float32)


def test_shifts_are_crops_of_the_padded_image():
  got = augment.random_shift(jax.random.key(0), IMAGE, 2, -1.0)
  assert got.shape == IMAGE.shape
  around = ((0, 0), (2, 2), (2, 2), (0, 0))
  padded = np.pad(IMAGE, around, constant_values=-1)
  places = []
  for image, shifted in zip(padded, got, strict=True):
    found = [
      (i, j)
      for i in range(5)
      for j in range(5)
      if np.array_equal(image[i : i + 5, j : j + 6], shifted)
    ]
    assert len(found) == 1
    places += found
  assert {i for i, _ in places} == {j for _, j in places} == set(range(5))
  assert len(set(places)) > 15  # of 25, and not on a diagonal


def test_padding_by_a_colour():
  one = augment.random_shift(jax.random.key(0), IMAGE, 2, (-1.0, -1.0))
  two = augment.random_shift(jax.random.key(0), IMAGE, 2, (-1.0, 3.0))
  np.testing.assert_array_equal(
    one, augment.random_shift(jax.random.key(0), IMAGE, 2, -1.0)
  )
  np.testing.assert_array_equal(one[..., 0], two[..., 0])
  np.testing.assert_array_equal(
    np.where(np.equal(one, -1), 3, one)[..., 1], two[..., 1]
  )
  with pytest.raises(ValueError, match="one number, or one for each of 2 chan"):
    augment.random_shift(jax.random.key(0), IMAGE, 2, (-1.0, -1.0, -1.0))
  with pytest.raises(ValueError, match="pad=-1: expected 0 or more"):
    augment.Augment(pad=-1)


def test_half_of_the_images_are_mirrored():
  got = np.asarray(augment.random_flip_lr(jax.random.key(1), IMAGE))
  mirrored = (got == IMAGE[:, :, ::-1]).all((1, 2, 3))
  assert 16 < mirrored.sum() < 48
  np.testing.assert_array_equal(got[~mirrored], IMAGE[~mirrored])
