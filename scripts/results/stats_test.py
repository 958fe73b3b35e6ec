"""Intervals against printed tables of Student's t."""

import math

import pytest
import scipy.stats

from scripts.results import stats


@pytest.mark.parametrize(
  ("n", "t"),  # t(0.975, n - 1) as printed in any table
  [(2, 12.706), (3, 4.303), (5, 2.776), (10, 2.262), (31, 2.042)],
)
def test_interval_has_the_quantile_of_the_t_table(n, t):
  values = [0.0] * (n - 1) + [1.0]
  # Mean 1/n and variance 1/n, so that s / √n is 1/n.
  result = stats.mean(values)
  assert result.value == pytest.approx(1 / n)
  assert result.ci == pytest.approx(t / n, rel=1e-3)
  assert result.n == n


def test_three_accuracies_by_hand():
  # Mean 0.97, s = 0.01, 4.303 · 0.01 / √3 = 0.02484.
  result = stats.mean([0.96, 0.97, 0.98])
  assert result.text(scale=100, digits=1) == "97.0 ± 2.5"
  assert result.text(digits=4) == "0.9700 ± 0.0248"


def test_one_number_has_no_interval():
  result = stats.mean([0.5])
  assert math.isnan(result.ci)
  assert result.text(scale=100, digits=1) == "50.0"


def test_no_number_has_no_mean():
  assert stats.mean([]).text() == "–"


def test_equal_numbers_have_an_empty_interval():
  assert stats.mean([0.25, 0.25, 0.25]).text() == "0.25 ± 0.00"


def test_sign():
  assert stats.Mean(0.5, 0.25, 3).text(sign="+") == "+0.50 ± 0.25"
  assert stats.Mean(-0.5, 0.25, 3).text(sign="+") == "−0.50 ± 0.25"


def test_equal_seeds_are_paired():
  # Differences 1, 2, 3: mean 2, s = 1, 4.303 · 1 / √3 = 2.484.
  new, old = {0: 11.0, 1: 7.0, 2: 5.0}, {0: 10.0, 1: 5.0, 2: 2.0}
  difference, how = stats.difference(new, old)
  assert (how, difference.n) == ("paired", 3)
  assert difference.value == pytest.approx(2.0)
  assert difference.ci == pytest.approx(2.484, abs=1e-3)


def test_other_seeds_are_compared_by_welch():
  # Variances 1, so √(1/3 + 1/3) with 4 degrees of freedom: 2.776 · 0.8165.
  new, old = {0: 5.0, 1: 6.0, 2: 7.0}, {3: 0.0, 4: 1.0, 5: 2.0}
  difference, how = stats.difference(new, old)
  assert (how, difference.n) == ("Welch", 3)
  assert difference.value == pytest.approx(5.0)
  assert difference.ci == pytest.approx(2.267, abs=1e-3)


def test_welch_is_scipys():
  a, b = [0.2, 0.5, 0.9, 0.1], [1.0, 7.0]
  difference, _ = stats.difference(dict(enumerate(a)), dict(enumerate(b)))
  theirs = scipy.stats.ttest_ind(a, b, equal_var=False).confidence_interval()
  assert difference.value - difference.ci == pytest.approx(theirs.low)
  assert difference.value + difference.ci == pytest.approx(theirs.high)


def test_a_difference_of_single_runs_has_no_interval():
  for seed, expected in ((0, "paired"), (1, "unpaired")):
    difference, how = stats.difference({0: 3.0}, {seed: 1.0})
    assert (difference.value, difference.n, how) == (2.0, 1, expected)
    assert math.isnan(difference.ci)
