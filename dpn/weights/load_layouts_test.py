"""Rows of the class token, our own names: what loading recognizes."""

import numpy as np
import pytest

from dpn import trees
from dpn.weights import load, load_test


@pytest.mark.parametrize("join", ["lape", "add,cls_row=true"])
@pytest.mark.parametrize("compare", [False, True])
def test_a_kept_row_of_the_class_token_is_not_resized(tmp_path, join, compare):
  rows = np.random.RandomState(1).randn(1, 10, 16).astype(np.float32)
  wanted = load_test.shapes(20, 20, posemb_join=join)
  flat = trees.flatten(
    load_test.sevens(load_test.shapes(12, 12, posemb_join=join))
  )
  path = load_test.write(tmp_path, flat | {"pos_embedding": rows})
  kw = {"model": load_test.make(posemb_join=join)} if compare else {}
  got = load.load(path, wanted, **kw)
  np.testing.assert_array_equal(got["pos_embedding"][:, 0], rows[:, 0])
  np.testing.assert_allclose(
    got["pos_embedding"][0, 1:].reshape(5, 5, 16),
    load_test.bilinear(rows[0, 1:].reshape(3, 3, 16), 5),
    atol=1e-6,
  )
  np.testing.assert_array_equal(got["cls"], flat["cls"])


def test_oblong_grid_with_a_row_for_the_class_token(tmp_path):
  rows = np.random.RandomState(1).randn(1, 7, 16).astype(np.float32)
  flat = load_test.golden("tok")
  path = load_test.write(tmp_path, {**flat, "pos_embedding": rows})
  got = load.load(path, load_test.shapes())  # 2 x 3
  np.testing.assert_array_equal(got["pos_embedding"], rows[:, 1:])
  np.testing.assert_array_equal(got["cls"], flat["cls"] + rows[:, :1])


@pytest.mark.parametrize(
  "block_ln", ["sa=post,mlp=pre", "sa=post,mlp=pre+post"]
)
def test_our_own_names_are_not_renumbered(tmp_path, block_ln):
  want = load_test.sevens(load_test.shapes(block_ln=block_ln))
  path = load_test.write(tmp_path, trees.flatten(want))
  got = load.load(path, load_test.shapes(block_ln=block_ln))
  load_test.assert_equal(got, trees.flatten(want))
