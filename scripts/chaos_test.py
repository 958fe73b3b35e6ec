"""What the faults rely on, without the runs."""

from unittest import mock

import pytest

from scripts import chaos


@pytest.mark.parametrize("name", chaos.BROKEN_LOGGING)
def test_what_is_to_break_exists(name):
  with mock.patch(name) as broken:
    assert callable(broken)


def test_every_function_is_a_fault():
  assert len(chaos.FAULTS) == 19
  assert list(chaos.FAULTS)[:2] == ["sigterm", "sigkill"]
  assert all(fault.__doc__ for fault in chaos.FAULTS.values())
