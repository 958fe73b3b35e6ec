"""Whitened patches, which the authors of Dual PatchNorm began with.

arXiv 2302.01327, Appendix A. Differs from the paper, which does not say how it
whitened: `fit` is ZCA, the whitening that changes patches least, and stays as
it is; `embedding` is where a trained kernel starts.
"""

import math
from collections.abc import Iterable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

# Rounding pixels in [-1, 1] to 8 bits adds this variance to each, twice.
EPS = 1e-5
EMBEDDING_EPS = 5e-4  # of the code of arXiv 2404.00498
IMAGES = 10_000  # their patches are whitened


class Whitening(nn.Module):
  """(x - mean) matrix of flattened patches; the identity until `fit`.

  Both are fixed in training, in the collection `batch_stats`: a run saves,
  exports and loads them as it does running statistics.
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
    count: of images, after which no more are read.
  """
  mean, values, vectors = _principal(patches, count)
  matrix = vectors / np.sqrt(values + EPS) @ vectors.T
  return {"mean": mean.astype(np.float32), "matrix": matrix.astype(np.float32)}


def embedding(
  patches: Iterable[jax.Array], count: int, width: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns a kernel (pixels, width) and a bias that whiten patches.

  Column i is u_i / sqrt(v_i + eps), where u_i is the patches' i-th principal
  direction and v_i their variance along it, from the largest on; once there are
  no more, the same again with the other sign. The first convolution of arXiv
  2404.00498, Section 3.2, starts so; tokens get mean 0 here, by the bias.

  Arguments as in `fit`; patches are as the embedding sees them at first, and
  `width` is that of the tokens.
  """
  mean, values, vectors = _principal(patches, count)
  kernel = (vectors / np.sqrt(values + EMBEDDING_EPS))[:, ::-1]
  kernel = np.hstack([kernel, -kernel] * math.ceil(width / 2 / len(mean)))
  kernel = kernel[:, :width].astype(np.float32)
  return kernel, -mean.astype(np.float32) @ kernel


def _principal(patches, count):
  """Returns the mean of patches, and what their covariance consists of.

  With C = U diag(v) U^T these are v (pixels,), rising, and U (pixels, pixels).
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
