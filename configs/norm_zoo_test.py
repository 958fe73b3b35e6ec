"""Parameters of the zoo's methods, counted by hand."""

import math

import jax
import numpy as np
import pytest

from dpn.configs import norm_zoo
from dpn.models import vit

C, M, L, D, PIXELS = 64, 128, 4, 16, 8 * 8 * 3
LN = 2 * C
BLOCK = 2 * LN + 4 * (C * C + C) + (C * M + M) + (M * C + C)
EMBEDDING = PIXELS * C + C
BASE = EMBEDDING + C + 16 * C + L * BLOCK + LN + (C * 10 + 10)
# What a method has more than `base`. A network has two norms in each block and
# a last one, which is LayerNorm unless the method says otherwise.
MORE = {
  **dict.fromkeys(("base", "whiten", "whiten_init", "centernorm"), 0),
  **dict.fromkeys(("res_post", "lns", "mix_ln", "deepnorm"), 0),
  **dict.fromkeys(("unifiednorm", "rope", "tract"), 0),
  "dpn": 2 * PIXELS + LN,
  "rmsnorm": -2 * L * C,  # no biases
  "seednorm": 2 * L * C,  # three vectors
  "bhyt": 2 * L * (1 - C),
  "dyt": 2 * L + 1,
  "dyt+dpn": 2 * L + 1 + 2 * PIXELS + LN,
  "derf": 2 * (2 * L + 1),
  "derf+dpn": 2 * (2 * L + 1) + 2 * PIXELS + LN,
  "qk_norm": L * 2 * D,
  "layer_scale": L * 2 * C,
  "peri_ln": L * 2 * LN + LN,  # the last of the embedded tokens
  "normformer": L * (LN + 2 * M + C // D),  # and a scale for each head
  "sub_ln": L * (LN + 2 * M),
  "hybridnorm": L * (3 * D - LN),
  "keel": 3 * LN + (L - 1) * 4 * LN - 2 * L * LN - LN,
  "prepbn": (2 * L + 1) * (LN + 1),  # BatchNorm's, and a number
  "sigma_reparam": -(2 * L + 1) * LN + 6 * L + 2,  # a number for each kernel
  # A third kernel in each MLP, no biases in it nor of q, k and v, no norms; a
  # step's size of C in each half, scales of q, k, MLP (2 M) and logits.
  "ngpt": L * (C * M - M - C - 3 * C - 2 * LN + 2 * C + 2 * C + 2 * M)
  - LN
  + 10,
  "registers": 4 * C,
  "swiglu": L * (3 * C * 85 + 2 * 85 - 2 * C * M - M),
  "hmlp": sum((208 + 32, 1040 + 32, 4160 + 128)) - EMBEDDING,
  "vit_c": sum((432 + 32, 4608 + 64, 18432 + 128, C * C + C))
  - EMBEDDING
  - BLOCK,
}


@pytest.mark.parametrize("method", norm_zoo.METHODS)
def test_parameters(method):
  config = norm_zoo.get_config(f"data=digits,method={method}")
  model = vit.Model(10, **config.model)
  image = np.zeros((1, 32, 32, 3), np.float32)
  params = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
  count = sum(math.prod(x.shape) for x in jax.tree.leaves(params))
  assert count == BASE + MORE[method]
