"""Logs: what is on the disk after interruptions, and who may not stop a run."""

import io
import json
import resource
import signal
import struct
import sys
import types
from unittest import mock

import numpy as np
import PIL.Image
import pytest
from tensorboardX.proto import event_pb2

from dpn import errors, metrics


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


def test_reopening_drops_what_training_will_repeat(tmp_path):
  _write(tmp_path, 0, [1, 2, 3, 4])
  _write(tmp_path, 2, [3, 4, 5])
  text = (tmp_path / "metrics.jsonl").read_text()
  assert text == "".join(map(_row, [1, 2, 3, 4, 5]))
  timing = metrics.read(str(tmp_path / "timing.jsonl"))
  assert [row["step"] for row in timing] == [1, 2, 3, 4, 5]
  _write(tmp_path, 3, [6], timing_step=4)
  timing = metrics.read(str(tmp_path / "timing.jsonl"))
  assert [row["step"] for row in timing] == [1, 2, 3, 4, 6]


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
  assert _points(tmp_path) == [
    (1, "train/loss", 1.0),
    (1, "time/secs", 0.5),
    (2, "train/loss", 0.5),
    (2, "time/secs", 0.5),
  ]


def _points(workdir):
  return [
    (event.step, value.tag, value.simple_value)
    for event in _events(workdir)
    for value in event.summary.value
  ]


def test_tensorboard_has_names_config_and_pictures(tmp_path):
  config = {"lr": 0.25, "model": {"stem_ln": "dpn"}}
  writer = metrics.Writer(str(tmp_path), step=0, config=config)
  images = np.linspace(-1, 1, 2 * 4 * 3).reshape(2, 4, 3, 1)
  writer.pictures(images)
  writer.write(7, {"val/prec@1": 0.5, "grad_norm/block00": 2})
  writer.close()
  text, picture, *points = (
    value for event in _events(tmp_path) for value in event.summary.value
  )
  assert text.metadata.plugin_data.plugin_name == "text"
  assert json.loads(text.tensor.string_val[0]) == config
  shown = PIL.Image.open(io.BytesIO(picture.image.encoded_image_string))
  # Side by side; the lowest number is black, the highest white.
  want = np.concatenate([*images[..., 0]], axis=1) * 127.5 + 127.5
  np.testing.assert_allclose(np.asarray(shown.convert("L")), want, atol=1)
  assert [(p.tag, p.simple_value) for p in points] == [
    ("val/prec@1", 0.5),
    ("grad_norm/block00", 2.0),
  ]


def test_check_finite_names_quantity_and_interval():
  metrics.check_finite(5, 0, {"loss": 1e30, "l2_grads": 0.0})
  bad = {"loss": float("nan"), "l2_grads": float("inf"), "lr": 0.1}
  message = (
    r"^l2_grads = inf, loss = nan at step 50; finite until step 40\. .*lower lr"
  )
  with pytest.raises(errors.NonFiniteError, match=message):
    metrics.check_finite(50, 40, bad)


def _fake_wandb(monkeypatch, fails):
  """Installs a wandb that records calls and raises in the one named."""
  called = mock.Mock()
  run = types.SimpleNamespace(log=called.log, finish=called.finish)
  called.init.return_value = run
  if fails:
    error = RuntimeError(f"{fails} is down")
    getattr(called, fails).side_effect = error
  wandb = types.SimpleNamespace(init=called.init)
  monkeypatch.setitem(sys.modules, "wandb", wandb)
  return called.mock_calls


def _writer(workdir, step=0, **wandb):
  config = {"seed": 3, "lr": 0.25, "wandb": wandb}
  return metrics.Writer(str(workdir), step=step, config=config)


def test_wandb_knows_the_run_and_goes_on_with_it(tmp_path, monkeypatch):
  calls = _fake_wandb(monkeypatch, fails=None)
  workdir = tmp_path / "dpn_B16-s3"
  workdir.mkdir()
  for step in (0, 1):  # the second time after a restart
    writer = _writer(workdir, step, project="p")
    writer.write(step + 1, {"loss": 2, "val/prec@1": 0.5})
    writer.close()
  first, second = (kw for name, _, kw in calls if name == "init")
  assert first == second
  assert len(first.pop("id")) == 8
  assert first == {
    "dir": str(workdir),
    "project": "p",
    "name": "dpn_B16-s3",
    "group": "dpn_B16",
    "config": {"seed": 3, "lr": 0.25, "wandb": {"project": "p"}},
    "resume": "allow",
  }
  logged = {"train/loss": 2.0, "val/prec@1": 0.5}
  assert [c[1:] for c in calls if c[0] == "log"] == [
    ((logged,), {"step": 1}),
    ((logged,), {"step": 2}),
  ]
  assert calls[-1][0] == "finish"


def test_wandb_takes_what_the_config_says(tmp_path, monkeypatch):
  calls = _fake_wandb(monkeypatch, fails=None)
  workdir = tmp_path / "dpn-s4"  # the seed is 3: this is no arm of a sweep
  workdir.mkdir()
  _writer(workdir, name="mine", id="abc", dir="/scratch").close()
  [(_, _, kw), _] = calls
  assert (kw["name"], kw["id"], kw["dir"]) == ("mine", "abc", "/scratch")
  assert "group" not in kw


def test_wandb_that_cannot_work_is_an_error_at_the_start(tmp_path, monkeypatch):
  _fake_wandb(monkeypatch, fails="init")
  with pytest.raises(ValueError, match=r"wandb\.init failed: .*init is down"):
    _writer(tmp_path)
  monkeypatch.setitem(
    sys.modules, "wandb", types.SimpleNamespace(init=lambda project=None: None)
  )
  with pytest.raises(ValueError, match=r"'projct'\. Did you mean 'project'"):
    _writer(tmp_path, projct="p")
  monkeypatch.setitem(sys.modules, "wandb", None)
  with pytest.raises(ValueError, match="pip install wandb"):
    _writer(tmp_path)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  ("fails", "called"),
  [
    ("init", ["init"]),
    ("log", ["init", "log"]),
    ("finish", ["init", "log", "log", "log", "log", "finish"]),
  ],
)
def test_wandb_that_breaks_later_stops_nothing(
  tmp_path, monkeypatch, fails, called
):
  (tmp_path / "wandb_id.txt").write_text("abc")
  calls = _fake_wandb(monkeypatch, fails)
  _write(tmp_path, 0, [1, 2], config={"wandb": {}})
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
  # TensorBoard's writer keeps what it could not write, and tries again.
  assert [e.step for e in _events(tmp_path) if e.summary.value] == [1, 2, 3]


def test_tensorboard_cannot_be_opened(tmp_path, caplog):
  (tmp_path / "tensorboard").write_text("")
  with caplog.at_level("WARNING"):
    _write(tmp_path, 0, range(1, 30))
  assert "TensorBoard failed, the run goes on without" in caplog.text
  assert len(metrics.read(str(tmp_path / "metrics.jsonl"))) == 29
