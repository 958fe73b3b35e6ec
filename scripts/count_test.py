"""Parameters and multiply-adds against published columns and by hand."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import dpn.tasks
from dpn import trees
from dpn.models import vit
from dpn.scripts import count
from dpn.scripts.diagnosis import learned

# Table 2 of arXiv 2112.02624, LN rows: 10^9 multiply-adds, 10^6 parameters.
PUBLISHED = {
  ("Ti/16", 3): (1.26, 5.7),
  ("Ti/16", 4): (1.26, 5.7),
  ("S/16", 6): (4.6, 22.1),
  ("B/16", 16): (17.58, 86.5),
}


def rows_of(num_classes, px=224, **model):
  task = dpn.tasks.make({"num_classes": num_classes, "model": model})
  spec = {
    "image": ((8, px, px, 3), np.dtype("float32")),
    "labels": ((8, num_classes), np.dtype("float32")),
  }
  return count.count(task, spec), task, spec


def total(rows):
  return rows["FLOPs"].sum() / 2, rows["parameters"].sum()


@pytest.mark.parametrize(("variant", "heads"), PUBLISHED)
def test_published(variant, heads):
  macs, params = PUBLISHED[variant, heads]
  rows, *_ = rows_of(1000, variant=variant, num_heads=heads, pool_type="tok")
  got_macs, got_params = total(rows)
  np.testing.assert_allclose(got_macs, macs * 1e9, rtol=0.02)
  np.testing.assert_allclose(got_params, params * 1e6, rtol=0.01)


def test_dtn_adds_what_its_equations_do():
  kw = {"variant": "S/16", "depth": 3, "pool_type": "tok"}
  plain, *_ = rows_of(10, **kw)
  dtn, *_ = rows_of(10, norm="dtn", **kw)
  # Two ratios and three position weights per head, in six norms.
  assert total(dtn)[1] - total(plain)[1] == 6 * 5 * 6
  # Two weighted sums over 196 sources for each of 196 targets and channel.
  extra = total(dtn)[0] - total(plain)[0]
  np.testing.assert_allclose(extra, 6 * 2 * 196 * 196 * 384, rtol=0.1)


@pytest.mark.parametrize("scan", [False, True])
def test_rows_by_hand(scan):
  kw = {"px": 16, "width": 32, "depth": 2, "mlp_dim": 128, "num_heads": 2}
  kw |= {"patch_size": (4, 4), "pool_type": "map", "rep_size": True}
  kw |= {"stem_ln": "dpn", "posemb_join": "lape", "block_ln": "normformer"}
  kw |= {"remat_policy": "nothing_saveable", "scan": scan}
  rows, task, spec = rows_of(7, **kw)
  batch = {k: np.zeros(shape, dtype) for k, (shape, dtype) in spec.items()}
  variables = jax.eval_shape(task.init, jax.random.key(0), batch)
  params = jax.tree.leaves(variables["params"])
  assert total(rows)[1] == sum(p.size for p in params)
  block = "Transformer/encoderblock"
  parameters, flops = rows["parameters"], rows["FLOPs"]
  assert parameters["head"] == 32 * 7 + 7
  assert flops["head"] == 2 * 32 * 7
  assert parameters[f"{block}/pe_norm"] == 2 * 2 * 32
  assert parameters["stem/ln0"] == 2 * 48
  assert parameters["stem/ln1"] == 2 * 32
  assert parameters["embedding"] == 48 * 32 + 32
  assert flops["embedding"] == 2 * 16 * 48 * 32
  # In each of two blocks, by 16 tokens: four projections, scores, their sums.
  attention = 4 * 16 * 32 * 32 + 2 * 16 * 16 * 32
  assert flops[f"{block}/MultiHeadDotProductAttention_0"] == 2 * 2 * attention
  assert flops[f"{block}/MlpBlock_0"] == 2 * 2 * 2 * 16 * 32 * 128
  assert count.OUTSIDE not in rows.index


def test_table():
  rows = pd.DataFrame(
    {"parameters": [1000, 234], "FLOPs": [2000, 4000]}, index=["stem", "head"]
  )
  assert count.table(rows) == (
    "      parameters  FLOPs multiply-adds\n"
    "stem       1,000  2,000         1,000\n"
    "head         234  4,000         2,000\n"
    "total      1,234  6,000         3,000"
  )


def test_audit_of_a_parameter():
  """Frozen, decayed and slowed ones, and initial values, by hand."""
  config = {
    "num_classes": 4,
    "init_head_bias": -6.9,
    "model": {"width": 16, "depth": 1, "num_heads": 2, "scan": False},
    "wd": 1e-4,
    "wd_mults": [("head/kernel", 100.0), (".*/kernel", 1.0)],
    "lr_mults": [("head/.*", 0.5)],
    "schedule": [("embedding/.*", None), (".*", {"mult": 0.1})],
  }
  spec = {
    "image": ((8, 16, 16, 3), np.dtype("float32")),
    "labels": ((8, 4), np.dtype("float32")),
  }
  rows = count.audit(config, dpn.tasks.make(config), spec)
  assert rows.loc["head/kernel"].to_list() == [
    *("(16, 4)", "0", "0", "0.05", "0.001"),
    "lr_mults: head/.*, wd_mults: head/kernel, schedule: .*",
  ]
  assert rows.loc["head/bias", ["init", "wd"]].to_list() == ["-6.9", "0"]
  embedding = rows.loc["embedding/kernel"]
  assert embedding[["init", "lr", "wd"]].to_list() == ["random", "frozen", "0"]
  # LeCun's: the variance is one over the 768 pixels of a patch.
  np.testing.assert_allclose(float(embedding["std"]), 768**-0.5, rtol=0.02)


def test_decay_groups():
  """By hand, of a model with all kinds of parameters."""
  size = {"width": 8, "depth": 1, "num_heads": 2, "mlp_dim": 12}
  model = vit.Model(5, **size, patch_size=(2, 2), pool_type="map", registers=3)
  image = np.zeros((1, 4, 4, 3), np.float32)
  params = model.init(jax.random.key(0), image)["params"]
  rows = learned.decay_groups(trees.flatten(params))
  attention = 2 * (4 * 8 * 8 + 2 * 8 * 12)  # of the block and of the pooling
  assert rows["numbers"].to_dict() == {
    "kernels": 12 * 8 + attention + 8 * 5,
    "tokens and positions": 3 * 8 + 4 * 8,
    "probe of the attention pooling": 8,
    "scales of norms": 4 * 8,
    "biases": 8 + 2 * (4 * 8 + 12 + 8) + 4 * 8 + 5,
  }
  assert rows["timm"].to_list() == ["decays", "-", "decays", "-", "-"]
  assert rows["big_vision"].to_list() == ["decays", "-", "-", "-", "-"]


@pytest.mark.parametrize(("path", "config"), [(None, None), ("a", {"a": 1})])
def test_of_what(monkeypatch, path, config):
  flag = types.SimpleNamespace(value=config)
  monkeypatch.setattr(count, "_CONFIG", flag, raising=False)
  with pytest.raises(ValueError, match="either --config or a checkpoint"):
    count.main(path)


def test_an_audit_counts_blocks_on_beyond_nine():
  params = {f"encoderblock_{i}": jnp.zeros(1) for i in range(11)}
  task = types.SimpleNamespace(init=lambda rng, batch: {"params": params})
  spec = {"image": ((1, 2, 2, 1), np.dtype("float32"))}
  assert [*count.audit({"lr": 1.0}, task, spec).index] == [*params]
