"""Accuracy under corruptions of a classifier that can be written out."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from dpn import sharding
from dpn.evaluators import corruptions
from dpn.input_pipeline.sources import arrays

IMAGES = np.random.default_rng(0).integers(0, 200, (10, 4, 4, 3), np.uint8)
LABELS = (IMAGES.mean((1, 2, 3)) > 100).astype(np.int32)
PP = "corrupt|value_range(0, 255)|onehot(2, key='label', key_result='labels')"


def _bright(variables, batch):
  """Returns class 1 for images brighter than 100 on average."""
  mean = batch["image"].mean((1, 2, 3))
  return jnp.stack([jnp.full_like(mean, 100), mean], -1), {}


def _evaluator(save, pp_fn=PP, **kw):
  data, mesh = save(image=IMAGES, label=LABELS), sharding.make_mesh()
  kw |= {"batch_size": 4, "pp_fn": pp_fn, "loss_name": "softmax_xent"}
  return corruptions.Evaluator(_bright, mesh=mesh, data=data, **kw)


def test_accuracies(save, monkeypatch):
  kw = {"kinds": ("gamma", "contrast", "fog"), "severities": (1, 5)}
  evaluator = _evaluator(save, **kw)
  got = evaluator.run({})
  kept = _evaluator(save, cache_final=True, **kw)
  assert kept.run({}) == got
  with monkeypatch.context() as patch:
    read = lambda *_: pytest.fail("read again")
    patch.setattr(arrays.ArraySource, "__getitem__", read)
    assert kept.run({}) == got
  x = IMAGES / 255.0
  mean = x.mean((1, 2), keepdims=True)

  def accuracy(changed):
    levels = np.floor(np.clip(changed, 0, 1) * 255)
    return np.mean((levels.mean((1, 2, 3)) > 100) == LABELS)

  want = {
    "gamma_1_prec@1": accuracy(x**1.25),
    "gamma_5_prec@1": accuracy(x**3),
    "contrast_1_prec@1": accuracy((x - mean) * 0.75 + mean),
    "contrast_5_prec@1": accuracy((x - mean) * 0.15 + mean),
  }
  assert {name: got[name] for name in want} == pytest.approx(want)
  assert len({*want.values()}) > 1
  assert got["gamma_prec@1"] == np.mean([*want.values()][:2])
  every = [got[f"{kind}_prec@1"] for kind in ("gamma", "contrast", "fog")]
  assert got["prec@1"] == pytest.approx(np.mean(every))
  assert len(got) == 3 * 2 + 3 + 1
  assert evaluator.run({}) == got


def test_a_model_that_has_diverged(save):
  evaluator = _evaluator(save, kinds=("gamma",))
  nan = lambda *args: (jnp.nan * _bright(*args)[0], {})
  evaluator = dataclasses.replace(evaluator, predict_fn=nan)
  with pytest.raises(ValueError, match="The loss is nan"):
    evaluator.run({})


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"kinds": ("mist",)}, "Unknown kind 'mist'"),
    ({"pp_fn": PP.replace("corrupt|", "")}, "must have the op corrupt once"),
    ({"pp_fn": f"corrupt|{PP}"}, "must have the op corrupt once"),
    ({"pp_fn": PP.replace("|", '("fog", 2)|', 1)}, "must have the op corrupt"),
    ({"pp_fn": f"value_range|{PP}"}, "place corrupt before value_range"),
    ({"severities": (1, 9)}, "severity"),
  ],
)
def test_wrong_sections(save, changes, message):
  with pytest.raises(ValueError, match=message):
    _evaluator(save, **changes)
