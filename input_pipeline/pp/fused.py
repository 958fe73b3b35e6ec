"""Loops for which NumPy takes several passes, compiled with Numba.

Their results equal NumPy's and SciPy's to the last bit. `lazy_image.compiled`
finds this module where the extra `restart` is installed.
"""

import numba
import numpy as np
import scipy.sparse

_compiled = numba.njit(nogil=True, cache=True)


def weighted_rows(
  weights: scipy.sparse.csr_array, values: np.ndarray
) -> np.ndarray:
  """Returns weights @ values as float32.

  Args:
    weights: (new rows, rows) float32, without empty rows.
    values: (rows, cols) uint8 or float32.
  """
  result = np.empty((weights.shape[0], values.shape[1]), np.float32)
  _sum_rows(weights.indptr, weights.indices, weights.data, values, result)
  return result


@_compiled
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


@_compiled
def linear(image: np.ndarray, times: np.ndarray, plus: np.ndarray):
  """Returns image * times + plus as float32, for (rows, n), (n,) and (n,)."""
  result = np.empty(image.shape, np.float32)
  for row in range(image.shape[0]):
    levels, values = image[row], result[row]
    for i in range(levels.size):
      values[i] = np.float32(levels[i]) * times[i] + plus[i]
  return result
