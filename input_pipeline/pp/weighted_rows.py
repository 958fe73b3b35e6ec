"""Weighted sums of rows, compiled with Numba (the extra `restart`).

The same numbers as SciPy's product of a sparse matrix, to the last bit.
"""

import numba
import numpy as np
import scipy.sparse


def product(weights: scipy.sparse.csr_array, values: np.ndarray) -> np.ndarray:
  """Returns weights @ values as float32.

  Args:
    weights: (new rows, rows) float32, without empty rows.
    values: (rows, cols) of any real type.
  """
  result = np.empty((weights.shape[0], values.shape[1]), np.float32)
  _sum(weights.indptr, weights.indices, weights.data, values, result)
  return result


@numba.njit(nogil=True, cache=True)
def _sum(begins, columns, weights, values, result):
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
