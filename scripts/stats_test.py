"""Intervals against printed tables of Student's t."""

import math

import pytest

from scripts import stats


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
