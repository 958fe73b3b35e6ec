"""Names, regex masks and norms against trees written out by hand."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from flax.core import FrozenDict

from dpn import trees


class Pair(NamedTuple):
  mu: int
  nu: int


@struct.dataclass
class State:
  step: int
  opt: list
  name: str = struct.field(pytree_node=False, default="x")


def test_flatten_names_every_kind_of_node():
  tree = FrozenDict(a=State(1, [Pair(2, 3), {"b": 4}]), c=(5, None))
  assert trees.flatten(tree) == {
    "a/step": 1,
    "a/opt/0/mu": 2,
    "a/opt/0/nu": 3,
    "a/opt/1/b": 4,
    "c/0": 5,
  }
  assert trees.flatten(7) == {"": 7}
  assert trees.flatten({}) == {}


def test_ambiguous_names_are_errors():
  with pytest.raises(ValueError, match=r"2 leaves have only 1 names"):
    trees.flatten({"a/b": 1, "a": {"b": 2}})
  with pytest.raises(ValueError, match=r"\['a/b'\] name leaves and parents"):
    trees.unflatten({"a/b": 1, "a/b/c": 2})


def test_masks_first_full_match_owns():
  shape = jax.ShapeDtypeStruct((2,), "float32")
  tree = {"a": {"kernel": shape, "bias": shape}, "kernel2": shape}
  kernel, inner, rest = trees.masks(tree, ["a/ker.*", "a/.*", ".*"], "c.x")
  assert kernel == {"a": {"kernel": True, "bias": False}, "kernel2": False}
  assert inner == {"a": {"kernel": False, "bias": True}, "kernel2": False}
  assert rest == {"a": {"kernel": False, "bias": False}, "kernel2": True}
  # The whole name has to match: neither a prefix nor a part is enough.
  (mask,) = trees.masks(tree, ["kernel"], "c.x")
  assert not any(jax.tree.leaves(mask))


def test_masks_warn_once_about_idle_patterns(monkeypatch):
  said = []
  monkeypatch.setattr(
    trees.logging, "warning", lambda _, text: said.append(text)
  )
  for _ in range(2):
    trees.masks({"a": 1, "b": 2}, ["a", "z.*", ".*", "b"], "config.idle")
  assert len(said) == 2
  assert "config.idle: nothing belongs to 'z.*'" in said[0]
  assert "nothing belongs to 'b'" in said[1]


def test_masks_reject_a_broken_regex():
  with pytest.raises(ValueError, match=r"config\.wd_mults: got '\*/kernel'"):
    trees.masks({"a": 1}, [".*", "*/kernel"], "config.wd_mults")


def test_l2():
  tree = {"a": jnp.array([[1.0, 2.0]]), "b": [np.array([2.0]), 4.0]}
  assert trees.l2(tree) == 5.0
  # 4,096 squares of 1 cannot be counted in bfloat16.
  assert trees.l2(jnp.ones(4096, jnp.bfloat16)) == 64.0
  assert trees.l2({}) == 0.0


def test_differences():
  a, b = {"x": 1, "y": {"z": [1, 2]}}, {"x": 1, "y": {"z": [1]}, "w": "v"}
  assert trees.differences(a, b) == [
    ("w", "absent", "v"),
    ("y/z/1", 2, "absent"),
  ]
  a, b = {"x": None, "y": [["a", None]]}, {"x": {}, "y": [["a", {}]], "w": []}
  assert trees.differences(a, b) == [
    *[("w", "absent", []), ("x", None, {}), ("y/0/1", None, {})]
  ]
  assert not trees.differences(a, a)
