"""Computes in one loop what takes NumPy several passes.

The loops are compiled if Numba is installed (the extra `restart`); the results
equal NumPy's and SciPy's to the last bit.
"""

import functools
from collections.abc import Callable

import numpy as np
import scipy.sparse


@functools.cache
def compiled(function: Callable) -> Callable | None:
  """Returns a compiled function, or None."""
  try:
    import numba

    return numba.njit(nogil=True, cache=True)(function)
  except (ImportError, OSError, RuntimeError):  # or no memory, or cache
    return None


def weighted_rows(
  weights: scipy.sparse.csr_array, values: np.ndarray
) -> np.ndarray:
  """Returns weights @ values as float32.

  Args:
    weights: (new rows, rows) float32, without empty rows.
    values: (rows, cols) uint8 or float32.
  """
  if not (sum_rows := compiled(_sum_rows)):
    return weights @ values.astype(np.float32)
  result = np.empty((weights.shape[0], values.shape[1]), np.float32)
  sum_rows(weights.indptr, weights.indices, weights.data, values, result)
  return result


def _sum_rows(begins, columns, weights, values, result):
  for row in range(result.shape[0]):
    total = result[row]
    first = begins[row]
    weight, terms = weights[first], values[columns[first]]
    for i in range(total.size):
      total[i] = weight * np.float32(terms[i])
    for entry in range(first + 1, begins[row + 1]):
      weight, terms = weights[entry], values[columns[entry]]
      for i in range(total.size):
        total[i] += weight * np.float32(terms[i])


def linear(rows: np.ndarray, times: np.ndarray, plus: np.ndarray) -> np.ndarray:
  """Returns rows * times + plus as float32, for rows of levels or values."""
  by_column = rows.dtype == np.uint8 and (rows.ndim, times.ndim) == (2, 1)
  if by_column and (fn := compiled(_linear)):
    return fn(rows, times, plus)
  result = np.multiply(rows, times, dtype=np.float32)
  result += plus
  return result


def _linear(image, times, plus):
  result = np.empty(image.shape, np.float32)
  for row in range(image.shape[0]):
    levels, values = image[row], result[row]
    for i in range(levels.size):
      values[i] = np.float32(levels[i]) * times[i] + plus[i]
  return result
