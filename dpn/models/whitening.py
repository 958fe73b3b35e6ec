"""Whitened patches, which the authors of Dual PatchNorm began with.

arXiv 2302.01327, Appendix A. The paper does not say how it whitened, so this is
our choice: `fit` is ZCA, the whitening that changes patches least, and stays
fixed; `embedding` is where a trained kernel starts.
"""

import math
from collections.abc import Iterable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

# Twice the variance that rounding to 8 bits adds to a pixel in [-1, 1].
EPS = 1e-5
EMBEDDING_EPS = 5e-4  # as in the code of arXiv 2404.00498
IMAGES = 10_000  # whose patches the whitening is fitted to


class Whitening(nn.Module):
  """(x - mean) matrix of flattened patches; the identity until `fit`.

  Mean and matrix are fixed in training. They are in the collection
  `batch_stats`, so a run saves, exports and loads them like running statistics.
  """

  @nn.compact
  def __call__(self, patches):  # (…, pixels), any dtype → float32 or wider
    pixels = patches.shape[-1]
    mean = self.variable("batch_stats", "mean", jnp.zeros, (pixels,))
    matrix = self.variable("batch_stats", "matrix", jnp.eye, pixels)
    x = patches.astype(jnp.promote_types(patches.dtype, jnp.float32))
    x = x - mean.value.reshape((1,) * (x.ndim - 1) + (-1,))
    # Small differences between pixels grow a hundredfold.
    return jnp.matmul(x, matrix.value, precision=jax.lax.Precision.HIGHEST)


def fit(patches: Iterable[jax.Array], count: int) -> Mapping[str, np.ndarray]:
  """Returns the variables of `Whitening` that whiten the given patches.

  With the covariance C = U diag(v) U^T, the matrix is
  U diag(1 / sqrt(v + EPS)) U^T.

  Args:
    patches: arrays (images, …, pixels), of all processes.
    count: the number of images after which no more are read.
  """
  mean, values, vectors = _principal(patches, count)
  matrix = vectors / np.sqrt(values + EPS) @ vectors.T
  return {"mean": mean.astype(np.float32), "matrix": matrix.astype(np.float32)}


def embedding(
  patches: Iterable[jax.Array], count: int, width: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns a kernel (pixels, width) and a bias that whiten patches.

  Column i is u_i / sqrt(v_i + eps), where u_i is the patches' i-th principal
  direction and v_i their variance along it, from the largest on. After the last
  direction, all follow again with the opposite sign. The first convolution of
  arXiv 2404.00498, Section 3.2, starts like this; here the bias gives tokens
  mean 0. Arguments are as in `fit`; patches are as the embedding sees them at
  first, and `width` is the tokens'.
  """
  mean, values, vectors = _principal(patches, count)
  kernel = (vectors / np.sqrt(values + EMBEDDING_EPS))[:, ::-1]
  kernel = np.hstack([kernel, -kernel] * math.ceil(width / 2 / len(mean)))
  kernel = kernel[:, :width].astype(np.float32)
  return kernel, -mean.astype(np.float32) @ kernel


def _principal(patches, count):
  """Returns the mean of patches and the eigendecomposition of their covariance.

  With C = U diag(v) U^T: v (pixels,), ascending, and U (pixels, pixels).
  """
  images = number = 0
  total = square = np.float64(0)
  for x in patches:
    of_batch = multihost_utils.process_allgather(_moments(x), tiled=True)
    total, square = total + of_batch[0], square + of_batch[1]
    images, number = images + len(x), number + math.prod(x.shape[:-1])
    if images >= count:
      break
  mean = total / number
  values, vectors = np.linalg.eigh(square / number - np.outer(mean, mean))
  logging.info("Whitening: the patches of %d images.", images)
  return mean, np.maximum(values, 0), vectors


@jax.jit
def _moments(x):
  """Returns the sums of x (…, pixels) and of its outer products."""
  x = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
  return x.sum(axis=0), jnp.matmul(x.T, x, precision=jax.lax.Precision.HIGHEST)
