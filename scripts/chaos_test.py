"""What the faults rely on, and that they notice a build without a safety."""

import contextlib
import shutil
from unittest import mock

import numpy as np
import pytest

from dpn import registry
from dpn.input_pipeline import loader, order
from dpn.scripts import chaos
from dpn.scripts.faults import builds, data, in_a_run, runs, soak
from dpn.trainers import cli, loop, testing

PATCHES = [build.patches for build in builds.BUILDS.values()]
FLAT = {"memory_mb": 300.0, "descriptors": 40, "threads": 20}


class InProcess(runs.Runs):
  """Tiny runs in this process, beside a reference that exists."""

  def __init__(self, root, reference, caplog, build):
    self.root, self.build, self._caplog = root, build, caplog
    shutil.copytree(reference, root / "reference")

  def train(self, run, *flags, patches=None, fails=None):
    config, said = testing.tiny_config(evals={}), ""
    self._caplog.clear()
    with contextlib.ExitStack() as stack:
      for name, path in {**self.build, **(patches or {})}.items():
        new = registry.import_path("patch", path)
        stack.enter_context(mock.patch(name, new))
      try:
        loop.train(config, str(self.root / run))
      except cli.EXPECTED as e:
        said = str(e)
    assert bool(said) == bool(fails), said
    assert (fails or "") in said, said
    return self._caplog.text


@pytest.fixture(scope="module", name="reference")
def _reference(tmp_path_factory):
  folder = tmp_path_factory.mktemp("runs") / "reference"
  loop.train(testing.tiny_config(evals={}), str(folder))
  return folder


@pytest.mark.parametrize("name", ["checksum", "atomic_rename", "log_cut"])
def test_a_broken_build_is_noticed(reference, tmp_path, caplog, name):
  build = builds.BUILDS[name]
  fault = chaos.FAULTS[build.noticed_by]
  whole = InProcess(tmp_path / "whole", reference, caplog, {})
  assert chaos.outcome(fault, whole) == "survived"
  broken = InProcess(tmp_path / "broken", reference, caplog, build.patches)
  assert chaos.outcome(fault, broken).startswith("NOT survived")


@pytest.mark.parametrize("patches", [in_a_run.BROKEN_LOGGING, *PATCHES])
def test_what_is_to_break_exists(patches):
  for name, path in patches.items():
    with mock.patch(name, registry.import_path("patch", path)) as broken:
      assert callable(broken)


def test_every_fault_is_described():
  assert len(chaos.FAULTS) == 32
  assert list(chaos.FAULTS)[:2] == ["sigterm", "sigkill"]
  assert all(fault.__doc__ for fault in chaos.FAULTS.values())
  assert {build.noticed_by for build in builds.BUILDS.values()} <= {
    *chaos.FAULTS
  }


THREADS_ONLY = [way for way in data.WAYS if not way.workers]


def test_every_example_once():
  counted = {"training": 3 * 97, "evaluation": 3 * 97}  # by 1, 2, 4 processes
  assert data.check(0, THREADS_ONLY) == counted


_batches = loader.Data.batches
BROKEN_DATA = {
  "starts over": (
    loader.Data,
    "batches",
    lambda self, seen=0: _batches(self, 0),
    "position .* is another example",
  ),
  "draws with replacement": (
    order,
    "_epoch",
    lambda seed, epoch, size, part: np.arange(size) // 2,
    "epoch 0: not once: 0 .2 times",
  ),
  "does not pad": (
    loader.EvaluationData,
    "num_examples",
    96,
    r"evaluation by 1 processes: not once: 96 \(0 times\)",
  ),
}


@pytest.mark.parametrize("broken", BROKEN_DATA.values(), ids=BROKEN_DATA)
def test_data_used_otherwise_are_noticed(monkeypatch, broken):
  *where, message = broken
  monkeypatch.setattr(*where)
  with pytest.raises(AssertionError, match=message):
    data.check(0, THREADS_ONLY)


def test_what_is_flat():
  samples = [FLAT | {"memory_mb": 300 + i % 3} for i in range(30)]
  assert soak.assert_flat(samples)["memory_mb"] == (301, 301)


@pytest.mark.parametrize(
  ("name", "per_sample"),
  [("memory_mb", 2.0), ("descriptors", 1), ("threads", 0.5)],
)
def test_what_grows(name, per_sample):
  grown = lambda i: FLAT | {name: FLAT[name] + int(i * per_sample)}
  with pytest.raises(AssertionError, match=f"{name} grew from"):
    soak.assert_flat([grown(i) for i in range(30)])
