"""The benchmark's arithmetic, and one arm of each kind measured."""

import jax
import numpy as np
import pytest

from scripts import bench_norms


def test_ratios_are_of_neighbours():
  seconds = {"pre-LN": [1.0, 10.0, 2.0], "b": [2.0, 20.0, 6.0]}
  got = bench_norms.compare(seconds, {"pre-LN": 100, "b": 150})["b"]
  assert got == {
    "ours": 6.0,
    "pre-LN": 2.0,
    "ratio": 2.0,  # although the medians differ by 3
    "ratio_q1": 2.0,
    "ratio_q3": 2.5,
    "memory_ratio": 1.5,
  }


def test_arms_cover_every_option():
  models = {
    str(bench_norms.vit.Model(10, variant="mu/16", **options))
    for options in bench_norms.ARMS.values()
  }
  assert len(models) == len(bench_norms.ARMS) == 24
  assert "batchnorm" in bench_norms.ARMS


@pytest.mark.parametrize("name", ["pre-LN", "powernorm", "lape"])
def test_steps_run(name):
  image = jax.random.uniform(jax.random.key(0), (2, 32, 32, 3))
  options = bench_norms.ARMS[name]
  steps = {name: bench_norms.compile_step(options, "mu/16", image)}
  before = jax.tree.map(np.asarray, steps[name][1]["params"]["embedding"])
  seconds = bench_norms.interleave(steps, repetitions=2)
  assert len(seconds[name]) == 2
  after = steps[name][1]["params"]["embedding"]
  assert not np.array_equal(before["kernel"], after["kernel"])
  # At least the parameters.
  leaves = jax.tree.leaves(steps[name][1])
  assert steps[name][2] >= sum(leaf.nbytes for leaf in leaves)
