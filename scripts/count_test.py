"""Parameters and multiply-adds against published columns and by hand."""

import jax
import numpy as np
import pytest

from configs import augreg_i1k, digits
from dpn.models import vit
from scripts import count

# Table 2 of arXiv 2112.02624, LN rows: 10^9 multiply-adds, 10^6 parameters.
PUBLISHED = {
  ("Ti/16", 3): (1.26, 5.7),
  ("Ti/16", 4): (1.26, 5.7),
  ("S/16", 6): (4.6, 22.1),
  ("B/16", 16): (17.58, 86.5),
}


def total(parts):
  params = sum(p.params for p in parts.values())
  return sum(p.flops for p in parts.values()) / 2, params


@pytest.mark.parametrize(("variant", "heads"), PUBLISHED)
def test_published(variant, heads):
  macs, params = PUBLISHED[variant, heads]
  model = vit.Model(1000, variant=variant, num_heads=heads, pool_type="tok")
  parts = count.count(model, (224, 224, 3))
  np.testing.assert_allclose(
    total(parts), (macs * 1e9, params * 1e6), rtol=(0.02)
  )
  np.testing.assert_allclose(total(parts)[1], params * 1e6, rtol=0.01)


def test_dtn_adds_what_its_equations_do():
  kw = {"variant": "S/16", "depth": 3, "pool_type": "tok"}
  plain = count.count(vit.Model(10, **kw), (224, 224, 3))
  dtn = count.count(vit.Model(10, norm="dtn", **kw), (224, 224, 3))
  # Two ratios and three position weights per head, in six norms.
  assert total(dtn)[1] - total(plain)[1] == 6 * 5 * 6
  # Two weighted sums over 196 sources for each of 196 targets and channel.
  extra = total(dtn)[0] - total(plain)[0]
  np.testing.assert_allclose(extra, 6 * 2 * 196 * 196 * 384, rtol=0.1)


def test_parts_sum_to_the_model():
  model = vit.Model(
    7,
    width=32,
    depth=2,
    num_heads=2,
    patch_size=(4, 4),
    pool_type="map",
    rep_size=True,
    stem_ln="dpn",
    posemb_join="lape",
    block_ln="normformer",
    scan=True,
  )
  parts = count.count(model, (16, 16, 3))
  image = np.zeros((1, 16, 16, 3), np.float32)
  variables = jax.eval_shape(model.init, jax.random.key(0), image)
  params = jax.tree.leaves(variables["params"])
  assert total(parts)[1] == sum(p.size for p in params)
  assert parts["head"].params == 32 * 7 + 7
  assert parts["head"].flops == 2 * 32 * 7 + 7
  assert parts["blocks/pe_norm"].params == 2 * 2 * 32
  assert parts["stem"].params == 2 * 48 + 48 * 32 + 32 + 2 * 32
  assert {"MAPHead_0", "pre_logits", "encoder_norm"} < set(parts)


def test_table():
  parts = {"stem": count.Part(1000, 2e3), "head": count.Part(234, 4e3)}
  assert count.table(parts) == (
    "part   parameters  FLOPs  multiply-adds\n"
    "stem        1,000  2,000          1,000\n"
    "head          234  4,000          2,000\n"
    "total       1,234  6,000          3,000"
  )


def test_image_shape():
  shape = count.image_shape(augreg_i1k.get_config("variant=Ti/16"))
  assert shape == (224, 224, 3)
  assert count.image_shape(digits.get_config())[-1] == 1
