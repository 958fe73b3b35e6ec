"""Gains of the archived studies, against what their pages print."""

import pytest

from dpn.scripts.results import studies


def test_gains_are_those_of_the_pages():
  found = {s.name: g for s, g in studies.measured(studies.published())}
  street, tiny = (
    found["CamVid (mIoU), patch 8"],
    found["CIFAR-10, patch 8, 4.4 epochs"],
  )
  for gains, arm, mean, ci in (
    (street, "dpn", 2.34, 0.71),
    (street, "dpn+patch_stats", 6.82, 0.71),
    (tiny, "dpn", -3.6, 1.6),
    (found["CIFAR-10, patch 8, 8.9 epochs"], "none_standardized", 2.1, 1.2),
    (found["CIFAR-10, patch 8, 50 epochs"], "dpn", 2.3, 0.8),
    (found["Scenes, patch 16"], "none_standardized", 0.1, 0.6),
  ):
    assert gains[arm].mean == pytest.approx(mean, abs=0.05)
    assert gains[arm].ci == pytest.approx(ci, abs=0.05)


def test_an_unfinished_study_is_not_shown():
  frame = studies.published()
  some = frame[~((frame.arm == "dpn") & frame.seed.isin((4, 14)))]
  names = {s.name for s, _ in studies.measured(some)}
  assert "CamVid (mIoU), patch 8" not in names
