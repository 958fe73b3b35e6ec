"""Logs: what is on the disk after interruptions, and who may not stop a run."""

import json
import resource
import signal
import struct
import sys
import types

import pytest
from tensorboardX.proto import event_pb2

from dpn import metrics


def _write(workdir, start, steps, **kw):
  writer = metrics.Writer(str(workdir), step=start, **kw)
  for step in steps:
    writer.write(step, {"loss": 1 / step})
    writer.write(step, {"secs": 0.5}, metrics.TIMING)
  writer.close()


def _row(step):
  return json.dumps({"step": step, "loss": 1 / step}) + "\n"


def test_one_line_per_step(tmp_path):
  _write(tmp_path, 0, [3, 7])
  assert (tmp_path / "metrics.jsonl").read_text() == (
    '{"step": 3, "loss": 0.3333333333333333}\n'
    '{"step": 7, "loss": 0.14285714285714285}\n'
  )
  assert metrics.read(str(tmp_path / "timing.jsonl")) == [
    {"step": 3, "secs": 0.5},
    {"step": 7, "secs": 0.5},
  ]


def test_a_line_is_on_the_disk_at_once(tmp_path):
  writer = metrics.Writer(str(tmp_path), step=0)
  writer.write(1, {"loss": 1})
  assert (
    tmp_path / "metrics.jsonl"
  ).read_text() == '{"step": 1, "loss": 1.0}\n'
  writer.close()


def test_reopening_drops_what_training_will_repeat(tmp_path):
  _write(tmp_path, 0, [1, 2, 3, 4])
  _write(tmp_path, 2, [3, 4, 5])
  text = (tmp_path / "metrics.jsonl").read_text()
  assert text == "".join(map(_row, [1, 2, 3, 4, 5]))
  timing = metrics.read(str(tmp_path / "timing.jsonl"))
  assert [row["step"] for row in timing] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_torn_last_line_is_dropped(tmp_path, cut):
  _write(tmp_path, 0, [1, 2, 3])
  path = tmp_path / "metrics.jsonl"
  path.write_text(path.read_text()[:-cut])
  assert [row["step"] for row in metrics.read(str(path))] == [1, 2]
  _write(tmp_path, 3, [4])
  assert path.read_text() == _row(1) + _row(2) + _row(4)


LINES = {
  "zeros": bytes(20),
  "blank": b"",
  "no text": b'{"step": 2, "\xff": 1}',
  "a list": b"[]",
  "no step": b"{}",
  "null": b"null",
  "a step of text": b'{"step": "2", "loss": 1}',
  "text": b'{"step": 2, "loss": "low"}',
  "not finite": b'{"step": 2, "loss": NaN}',
  "doubled": b'{"step": 1, "loss": 1.0}',
  "deep": b"[" * 100_000,
  "long": b'{"step": 2, "loss": ' + b"9" * 4000 + b"}",
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_damaged_line_is_set_aside(tmp_path, line, caplog):
  _write(tmp_path, 0, [1, 3])
  path = tmp_path / "metrics.jsonl"
  first, last = path.read_bytes().splitlines(keepends=True)
  for suffix in ("", "-2"):
    path.write_bytes(first + line + b"\n" + last)
    with caplog.at_level("WARNING"):
      _write(tmp_path, 3, [])
    assert path.read_bytes() == first + last
    aside = tmp_path / f"metrics.jsonl.damaged{suffix}"
    assert aside.read_bytes() == line + b"\n"
    message = f"1 damaged lines are now in {aside.name}, the other 2 rows"
    assert message in caplog.text


def test_what_is_no_file_is_set_aside(tmp_path, caplog):
  (tmp_path / "metrics.jsonl").mkdir()
  (tmp_path / "timing.jsonl").symlink_to(tmp_path / "gone")
  assert metrics.read(str(tmp_path / "metrics.jsonl")) == []
  writer = metrics.Writer(str(tmp_path), step=0)
  writer.write(1, {"loss": 1.0})
  writer.close()
  rows = metrics.read(str(tmp_path / "metrics.jsonl"))
  assert rows == [{"step": 1, "loss": 1.0}]
  assert (tmp_path / "metrics.jsonl.damaged").is_dir()
  assert (tmp_path / "timing.jsonl.damaged").is_symlink()
  assert caplog.text.count("is no file") == 2


def test_no_file_is_no_rows(tmp_path):
  assert metrics.read(str(tmp_path / "metrics.jsonl")) == []


def _events(workdir):
  """Yields the events in all of TensorBoard's files, oldest file first."""
  for path in sorted((workdir / "tensorboard").iterdir()):
    data = path.read_bytes()
    while data:
      (size,) = struct.unpack("<Q", data[:8])
      yield event_pb2.Event.FromString(data[12 : 12 + size])
      data = data[16 + size :]


def test_tensorboard_has_the_same_numbers(tmp_path):
  _write(tmp_path, 0, [1, 2])
  points = [
    (event.step, value.tag, value.simple_value)
    for event in _events(tmp_path)
    for value in event.summary.value
  ]
  assert points == [
    (1, "loss", 1.0),
    (1, "secs", 0.5),
    (2, "loss", 0.5),
    (2, "secs", 0.5),
  ]


def test_check_finite_names_quantity_and_interval():
  metrics.check_finite(5, 0, {"loss": 1e30, "l2_grads": 0.0})
  bad = {"loss": float("nan"), "l2_grads": float("inf"), "lr": 0.1}
  message = (
    r"^l2_grads = inf, loss = nan at step 50; finite until step 40\. .*lower lr"
  )
  with pytest.raises(metrics.NonFiniteError, match=message):
    metrics.check_finite(50, 40, bad)


def _fake_wandb(monkeypatch, fails):
  """Installs a wandb that records calls and raises in the one named."""
  calls = []

  def called(name, *args, **kw):
    calls.append((name, args, kw))
    if name == fails:
      raise RuntimeError(f"{name} is down")

  run = types.SimpleNamespace(
    log=lambda *args, **kw: called("log", *args, **kw),
    finish=lambda: called("finish"),
  )

  def init(**kw):
    called("init", **kw)
    return run

  monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
  return calls


def test_wandb_gets_every_step(tmp_path, monkeypatch):
  calls = _fake_wandb(monkeypatch, fails=None)
  writer = metrics.Writer(str(tmp_path), step=0, wandb={"project": "p"})
  writer.write(1, {"loss": 2})
  writer.close()
  assert calls == [
    ("init", (), {"dir": str(tmp_path), "project": "p"}),
    ("log", ({"loss": 2.0},), {"step": 1}),
    ("finish", (), {}),
  ]


@pytest.mark.parametrize(
  ("fails", "called"),
  [
    ("import", []),
    ("init", ["init"]),
    ("log", ["init", "log"]),
    ("finish", ["init", "log", "log", "log", "log", "finish"]),
  ],
)
def test_a_broken_wandb_stops_nothing(tmp_path, monkeypatch, fails, called):
  calls = _fake_wandb(monkeypatch, fails)
  if fails == "import":
    monkeypatch.setitem(sys.modules, "wandb", None)
  _write(tmp_path, 0, [1, 2], wandb={})
  assert [name for name, *_ in calls] == called
  text = (tmp_path / "metrics.jsonl").read_text()
  assert text == _row(1) + _row(2)


@pytest.mark.parametrize("limit", [20, 40])
def test_a_full_disk_stops_nothing(tmp_path, limit, caplog):
  """A row is on the disk whole or not at all, and later ones are again."""
  writer = metrics.Writer(str(tmp_path), step=0)
  writer.write(1, {"loss": 1.0})
  before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
  try:
    with caplog.at_level("WARNING"):
      writer.write(2, {"loss": 0.5})
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, before)
  writer.write(3, {"loss": 0.25})
  writer.close()
  assert "metrics.jsonl failed, the run goes on without" in caplog.text
  rows = metrics.read(str(tmp_path / "metrics.jsonl"))
  assert [row["step"] for row in rows] == [1, 3]
  assert [e.step for e in _events(tmp_path) if e.summary.value] == [1, 3]


def test_tensorboard_cannot_be_opened(tmp_path, caplog):
  (tmp_path / "tensorboard").write_text("")
  with caplog.at_level("WARNING"):
    _write(tmp_path, 0, range(1, 30))
  assert "TensorBoard failed, the run goes on without" in caplog.text
  assert len(metrics.read(str(tmp_path / "metrics.jsonl"))) == 29
