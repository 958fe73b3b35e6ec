"""Folded models compute what the others do."""

import jax
import numpy as np
import pytest

from dpn import trees
from dpn.models import vit
from dpn.scripts import convert
from dpn.weights import files, metadata

TINY = {"width": 16, "depth": 2, "num_heads": 2, "patch_size": (4, 4)}
IMAGE = np.random.RandomState(0).uniform(-1, 1, (2, 8, 8, 3)).astype("f")


def write(path, **options):
  """Saves a model with random statistics; returns it and its variables."""
  model = vit.Model(5, **TINY, **options, head_zeroinit=False)
  variables = jax.jit(model.init)(jax.random.key(0), IMAGE)
  rng = np.random.RandomState(1)
  flat = {
    name: x if x.dtype == np.int32 else x + rng.uniform(0, 0.5, x.shape)
    for name, x in trees.flatten(variables).items()
  }
  variables = trees.unflatten({k: np.float32(x) for k, x in flat.items()})
  files.save_params(
    path,
    variables["params"],
    variables.get("batch_stats"),
    metadata.metadata(vit.options(model), None),
  )
  return model, variables


def logits(model, variables):
  return jax.jit(model.apply)(variables, IMAGE)[0]


@pytest.mark.parametrize(
  "options",
  [
    {"norm": "prepbn", "final_norm": "norm", "qkv_bias": False},
    {"norm": "batchnorm", "scan": True, "stem_ln": "dpn"},
    {"norm": "unifiednorm", "final_norm": "norm", "pool_type": "map"},
    {"norm": "affine", "final_norm": "norm", "pool_type": "tok", "rep_size": 7},
    {"norm": "batchnorm", "mlp": "swiglu", "registers": 2},
    {"weight_norm": "sigma_reparam", "norm": "prepbn", "final_norm": "norm"},
  ],
)
def test_norms_are_gone_and_logits_are_the_same(tmp_path, options):
  source, target = (str(tmp_path / f"{x}.safetensors") for x in "ab")
  want = logits(*write(source, **options))
  convert.main([source, target, "--to", "ours", "--fold_norms"])
  model, variables, _ = vit.from_pretrained(target)
  assert model.config.norm == "none"
  assert model.config.weight_norm == "none"
  assert set(variables) == {"params"}
  names = [*trees.flatten(variables["params"])]
  assert not any("LayerNorm" in n and "MAP" not in n for n in names)
  got = logits(model, variables)
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_weight_norms_are_folded_for_others(tmp_path):
  source, target = (str(tmp_path / f"{x}.safetensors") for x in "ab")
  made = write(source, weight_norm="sigma_reparam", gelu="exact")
  want = logits(*made)
  convert.convert(source, target, "timm")
  model, variables, _ = vit.from_pretrained(target)
  got = logits(model, variables)
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({}, "norm=affine or batchnorm.*has norm='layernorm'"),
    (
      {"norm": "batchnorm", "block_ln_kw": {"sa": "post"}},
      "has block_ln_kw={'sa': 'post'",
    ),
    ({"norm": "affine", "block_ln": "sub_ln"}, "block_ln='sub_ln'"),
  ],
)
def test_what_cannot_be_folded_says_why(tmp_path, options, message):
  source, target = (str(tmp_path / f"{x}.safetensors") for x in "ab")
  write(source, **options)
  with pytest.raises(ValueError, match=message):
    convert.convert(source, target, "ours", fold_norms=True)
