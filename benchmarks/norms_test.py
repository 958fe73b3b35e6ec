"""The benchmark's arithmetic, and one arm timed."""

from benchmarks import norms, step_peers
from dpn.models import vit


def test_ratios_are_of_neighbours():
  seconds = {"pre-LN": [1.0, 10.0, 2.0], "b": [2.0, 20.0, 6.0]}
  got = norms.compare(seconds, {"pre-LN": 100, "b": 150})["b"]
  assert got == {
    "ours": 6.0,
    "fastest": 2.0,
    "ratio": 2.0,  # although the medians differ by 3
    "ratio_q1": 2.0,
    "ratio_q3": 2.5,
    "memory_ratio": 1.5,
  }


def test_arms_cover_every_option():
  models = {
    str(vit.Model(10, variant="mu/16", **options))
    for options in norms.ARMS.values()
  }
  assert len(models) == len(norms.ARMS)
  assert "batchnorm" in norms.ARMS


def test_a_step_with_state_runs():
  setting = step_peers.Setting("mu/16", resolution=32, batch_size=4)
  step = step_peers.ours(setting, **norms.ARMS["powernorm"])
  before = step.run()
  seconds = norms.time_in_turn({"powernorm": step}, repetitions=2)
  assert len(seconds["powernorm"]) == 2
  assert step.run()["l2_params"] != before["l2_params"]
