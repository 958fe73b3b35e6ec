"""Intervals against printed tables of Student's t."""

import dataclasses
import math

import pandas as pd
import pytest
import scipy.stats

from dpn.scripts.results import aggregate, runs


@pytest.mark.parametrize(
  ("n", "t"),  # t(0.975, n - 1) as printed in any table
  [(2, 12.706), (3, 4.303), (5, 2.776), (10, 2.262), (31, 2.042)],
)
def test_interval_has_the_quantile_of_the_t_table(n, t):
  values = [0.0] * (n - 1) + [1.0]
  # Mean 1/n and variance 1/n, so that s / √n is 1/n.
  result = aggregate.estimate(values)
  assert result.mean == pytest.approx(1 / n)
  assert result.ci == pytest.approx(t / n, rel=1e-3)
  assert result.n == n


def test_one_number_has_no_interval_and_equal_numbers_an_empty_one():
  assert str(aggregate.estimate([0.5])) == "0.50 (n=1)"
  assert str(aggregate.estimate([0.25] * 3)) == "0.25 ± 0.00 (n=3)"


def test_two_numbers_are_shown_themselves():
  found = aggregate.estimate([96, 97])
  assert str(found) == "96.50 (n=2: 96.00, 97.00)"
  # Twelve standard errors around 1 exclude 0, but two seeds decide nothing.
  assert aggregate.estimate([1.0, 1.01]).side == 0
  both = aggregate.difference(pd.Series([3.0, 5.0]), pd.Series([2.0, 6.0]))
  assert str(both) == "0.00 (n=2: +1.00, −1.00, paired)"


def test_sign():
  for mean, text in (
    (0.5, "+0.50"),
    (-0.5, "−0.50"),
    (0.001, "0.00"),
    (-0.001, "0.00"),
  ):
    estimate = aggregate.Estimate(mean, 0.25, sign="+")
    assert str(estimate) == f"{text} ± 0.25"


def test_seeds_that_the_other_arm_has_too_are_paired():
  # Differences 1, 2, 3: mean 2, s = 1, 4.303 · 1 / √3 = 2.484.
  new, old = {0: 11.0, 1: 7.0, 2: 5.0}, {0: 10.0, 1: 5.0, 2: 2.0}
  more = old | {3: 99.0}
  for a, b, mean in ((new, old, 2.0), (new, more, 2.0), (more, new, -2.0)):
    difference = aggregate.difference(pd.Series(a), pd.Series(b))
    assert (difference.note, difference.n) == ("paired", 3)
    assert difference.mean == pytest.approx(mean)
    assert difference.ci == pytest.approx(2.484, abs=1e-3)


def test_few_of_many_seeds_in_common_are_not_paired():
  new, old = pd.Series(range(5)), pd.Series(range(5), index=range(2, 7))
  assert aggregate.difference(new, old).note == "Welch"


def test_a_difference_of_single_runs_has_no_interval():
  for seed, expected in ((0, "paired"), (1, "unpaired")):
    old = pd.Series({seed: 1.0})
    found = aggregate.difference(pd.Series({0: 3.0}), old)
    assert (found.mean, found.n, found.note) == (2.0, 1, expected)
    assert math.isnan(found.ci)


def test_a_difference_of_constants_has_an_empty_interval():
  new, old = pd.Series([3.0, 3.0]), pd.Series([1.0, 1.0, 1.0])
  difference = aggregate.difference(new, old)
  assert str(difference) == "+2.00 ± 0.00 (n=2, Welch)"


def _run(seed, model=(), **kw):
  config = {"lr": 1.0, "model": {"width": 8, **dict(model)}, **kw}
  done = {"metrics": {"loss": 1.0}}
  return runs.Run(f"run{seed}", {"seed": seed, **config}, done=done)


def test_what_may_differ_among_seeds_does_not_keep_runs_apart():
  plain = {"block_ln": "placement", "block_ln_kw": {"sa": "pre", "mlp": "pre"}}
  same = [_run(0, model_init=""), _run(1, log_training_steps=5), _run(2, plain)]
  arm = aggregate.arm(runs.frame(same), ("loss",))
  assert arm.values.to_dict() == {0: 1, 1: 1, 2: 1}
  with pytest.raises(
    ValueError, match=r"more than the seed \(lr: 1\.0, 2\.0\)"
  ):
    aggregate.arm(runs.frame([*same, _run(3, lr=2.0)]), ("loss",))


@pytest.mark.parametrize(
  ("inits", "alike"),
  [
    (("runs/dpn-s0", "runs/dpn-s1"), True),
    (("runs/dpn/seed=0/params.npz", "runs/dpn/seed=1/params.npz"), True),
    (("runs/dpn/0", "runs/dpn/1"), True),
    (("runs/dpn-s3", "runs/dpn-s3"), True),
    (("runs/dpn/0/params.npz", "runs/dpn/1/params.npz"), True),
    (("vit.npz", "vit.npz"), True),
    (("vit.npz", None), False),
    (("vit.npz", ""), False),
    (("vit.npz", "deit.npz"), False),
    (("runs/a/checkpoints/400", "runs/a/checkpoints/800"), False),
    (("runs/dpn_B16-s0", "runs/dpn_B32-s1"), False),
    (("runs/90/dpn", "runs/300/dpn"), False),
    (("vit-s16.npz", "vit-s32.npz"), False),
  ],
)
def test_seeds_may_start_from_parameters_of_their_own_seed_alone(inits, alike):
  for make in (lambda path: path, lambda path: {"img": path}):
    frame = runs.frame(
      [_run(seed, model_init=make(path)) for seed, path in enumerate(inits)]
    )
    assert bool(aggregate.unlike(frame)) != alike
    assert alike or "model_init" in aggregate.unlike(frame)


def test_seeds_may_draw_parts_of_the_data_of_their_own():
  drawn = [_run(i, input={"data": {"subset_seed": i}}) for i in range(2)]
  assert aggregate.unlike(runs.frame(drawn)) == ""
  whole = _run(2, input={"data": {}})
  assert "subset_seed" in aggregate.unlike(runs.frame([*drawn, whole]))


def test_seeds_must_be_measured_alike():
  def unlike(*sections, metric="val/miou"):
    made = [
      _run(
        i, table={"metric": metric}, evals=of and {"val": of, "probe": {"k": i}}
      )
      for i, of in enumerate(sections)
    ]
    return aggregate.unlike(runs.frame(made))

  where = {"data": {"data_dir": "/a"}, "log_steps": 5, "cache_final": True}
  assert (
    unlike({"flip": False}, {"flip": False, "batch_size": 2, **where}) == ""
  )
  assert "evals.val.flip: false, true" in unlike(
    {"flip": False}, {"flip": True}
  )
  assert "evals.val.flip: absent, true" in unlike(
    {"crop": 8}, {"crop": 8, "flip": True}
  )
  assert unlike({"flip": True}, None) == ""  # from an older archive
  spelled = {"type": "segmentation", "flip": False, "prefix": "val/"}
  assert unlike({"type": "segmentation"}, spelled) == ""  # a default
  drawn = [{"data": {"subset_seed": i}} for i in range(2)]  # what a seed left
  assert unlike(*drawn) == ""
  assert unlike({"flip": True}, {"flip": False}, metric="loss") == ""


def test_standard_error_and_p_value():
  # Differences 1, 2, 3: s / √3 = 0.5774, t = 3.464 with 2 degrees of freedom.
  found = aggregate.estimate([1, 2, 3])
  assert found.sem == pytest.approx(1 / math.sqrt(3))
  test = scipy.stats.ttest_1samp([1, 2, 3], 0)
  assert found.p_value == pytest.approx(test.pvalue)
  assert (found.side, aggregate.estimate([1.0, 9.0]).side) == (0, 0)
  shown = dataclasses.replace(found, interval="sem")
  assert str(shown) == "2.00 ± 0.58 (n=3)"
  assert aggregate.estimate([-4, -5, -4]).side == -1


def test_welch_is_scipys():
  a, b = [0.2, 0.5, 0.9, 0.1], [1.0, 7.0, 9.0]
  found = aggregate.difference(pd.Series(a), pd.Series(b, index=[4, 5, 6]))
  test = scipy.stats.ttest_ind(a, b, equal_var=False)
  assert found.p_value == pytest.approx(test.pvalue)
  low, high = test.confidence_interval()
  assert found.mean - found.ci == pytest.approx(low)
  assert found.mean + found.ci == pytest.approx(high)
  assert math.isnan(aggregate.estimate([1.0]).p_value)


def test_holm():
  # By hand: 4 · 0.01, then 3 · 0.015 = 0.045, 2 · 0.03 and, no less, 0.035.
  adjusted = aggregate.holm([0.03, 0.01, 0.035, 0.015])
  assert adjusted.tolist() == pytest.approx([0.06, 0.04, 0.06, 0.045])
  assert aggregate.holm([0.6, 0.7]).tolist() == [1.0, 1.0]
