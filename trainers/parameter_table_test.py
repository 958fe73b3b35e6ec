"""The table of parameters, against counts by hand."""

import jax
import numpy as np

from dpn.models import vit
from dpn.trainers import parameter_table


def _table(**kw):
  model = vit.Model(10, variant="Ti/16", stem_ln="dpn", **kw)
  image = np.zeros((1, 32, 32, 3), np.float32)
  shapes = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
  return parameter_table.table(shapes), shapes


def test_equal_blocks_are_one_row():
  text, shapes = _table()
  lines = text.splitlines()
  whole = sum(x.size for x in jax.tree.leaves(shapes))
  assert lines[-1].split() == ["parameters", f"{whole:,}"]
  assert all(len(line) <= 80 for line in lines)
  assert len(lines) < 24
  # Attention 4 · (192² + 192), MLP 2 · 192 · 768 + 768 + 192, norms 4 · 192.
  [row] = [line.split() for line in lines if "encoderblock" in line]
  assert row == ["encoderblock_0…11", "12", "×", "444,864"]
  [row] = [line.split() for line in lines if "Dense_0" in line]
  assert row[1:] == ["bias", "768,", "kernel", "192×768", "148,224"]


def test_scanned_blocks():
  text, _ = _table(scan=True)
  [row] = [line.split() for line in text.splitlines() if "Dense_0" in line]
  assert row[1:] == ["bias", "12×768,", "kernel", "12×192×768", "1,778,688"]
  assert f"{12 * 444_864:,}" in text


def test_blocks_that_differ_stay_apart():
  array = lambda *shape: {"kernel": np.zeros(shape)}
  params = {"a_0": array(2), "a_1": array(3), "a_3": array(2), "a": array(2)}
  params["b"] = array()
  lines = parameter_table.table(params).split("\n")
  assert [line.split() for line in lines] == [
    ["a_0,3", "kernel", "2", "2", "×", "2"],
    ["a_1", "kernel", "3", "3"],
    ["a", "kernel", "2", "2"],
    ["b", "kernel", "number", "1"],
    ["parameters", "10"],
  ]
