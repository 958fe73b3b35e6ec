"""Resized embeddings keep what defines them."""

import jax
import numpy as np
import pytest

from dpn.weights import resize as resizing


def resize(patches, size):
  """Returns (batch, *size, channels), by JAX's bilinear interpolation."""
  shape = (len(patches), *size, patches.shape[-1])
  return np.asarray(
    jax.image.resize(patches, shape, "bilinear", antialias=False)
  )


def embed(patches, kernel):
  return np.einsum("brsc,rscw->bw", patches, kernel)


@pytest.mark.parametrize(
  ("old", "new"), [((4, 4), (8, 8)), ((3, 4), (7, 5)), ((2, 2), (3, 3))]
)
def test_larger_patches_have_the_same_embedding(old, new):
  rng = np.random.RandomState(0)
  kernel = rng.randn(*old, 3, 6).astype(np.float32)
  patches = rng.randn(5, *old, 3).astype(np.float32)
  got = embed(resize(patches, new), resizing.patch_kernel(kernel, new))
  np.testing.assert_allclose(got, embed(patches, kernel), rtol=1e-4, atol=1e-4)


def test_smaller_patches_have_the_nearest_embedding():
  """The least squares of Equation 4 of arXiv 2212.08013, solved directly."""
  old, new = (6, 4), (4, 3)
  rng = np.random.RandomState(0)
  kernel = rng.randn(*old, 2, 5).astype(np.float32)
  pixels = np.eye(24, dtype=np.float32).reshape(24, *old, 1)
  matrix = resize(pixels, new).reshape(24, 12)  # a patch x becomes x @ matrix
  got = resizing.patch_kernel(kernel, new)
  for channel in range(2):
    want, *_ = np.linalg.lstsq(
      matrix, kernel[:, :, channel].reshape(24, 5), rcond=None
    )
    np.testing.assert_allclose(
      got[:, :, channel].reshape(12, 5), want, rtol=1e-3, atol=1e-3
    )


def test_same_size_is_the_same():
  kernel = np.random.RandomState(0).randn(4, 4, 3, 2).astype(np.float32)
  np.testing.assert_allclose(
    resizing.patch_kernel(kernel, (4, 4)), kernel, atol=1e-6
  )


def test_the_row_of_the_class_token_is_kept():
  x = np.random.RandomState(0).randn(1, 5, 3).astype(np.float32)
  got = resizing.posemb_with_row(x, 9, has_row=True)
  np.testing.assert_array_equal(got[:, 0], x[:, 0])
  np.testing.assert_array_equal(
    got[:, 1:].reshape(3, 3, 3)[::2, ::2], x[:, 1:].reshape(2, 2, 3)
  )
  np.testing.assert_allclose(got[0, 5], x[0, 1:].mean(axis=0), rtol=1e-5)
