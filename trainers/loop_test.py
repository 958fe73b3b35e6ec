"""Whole runs: what they leave, and that they resume exactly."""

import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest
import safetensors.numpy

from dpn import metrics, trees
from dpn.evaluators import mean
from dpn.trainers import build, conftest, ends, loop
from dpn.trainers import log as log_lib
from dpn.trainers import workdir as workdir_lib
from dpn.trainers.conftest import tiny_config
from dpn.weights import checkpoint

ROOT = pathlib.Path(__file__).parent.parent


@pytest.fixture(scope="module", name="finished")
def _finished(tmp_path_factory):
  """The working directory of a run that nothing disturbed."""
  workdir = tmp_path_factory.mktemp("run") / "finished"
  loop.train(tiny_config(), str(workdir))
  return workdir


def _params(workdir):
  return safetensors.numpy.load_file(workdir / "params.safetensors")


def _assert_same_results(workdir, other):
  for name in ("metrics.jsonl", "params.safetensors", "config.json"):
    assert (workdir / name).read_bytes() == (other / name).read_bytes(), name
  done, want = (
    json.loads((d / "done.json").read_text()) for d in (workdir, other)
  )
  assert done["metrics"] == want["metrics"]
  assert done["step"] == want["step"]


def test_what_a_run_leaves(finished):
  assert sorted(path.name for path in finished.iterdir()) == [
    "checkpoints",
    "config.json",
    "done.json",
    "environment.json",
    "lock",
    "metrics.jsonl",
    "params.safetensors",
    "tensorboard",
    "timing.jsonl",
  ]
  checkpoints = sorted(p.name for p in (finished / "checkpoints").iterdir())
  assert checkpoints == ["4", "6"]
  config = json.loads((finished / "config.json").read_text())
  assert config["model"]["stem_ln"] == "dpn"
  params = _params(finished)
  assert {p.dtype.name for p in params.values()} == {"float32"}
  assert params["embedding/kernel"].shape == (8, 8, 1, 16)
  assert params["stem/ln0/scale"].shape == (64,)


def test_what_tensorboard_shows(finished):
  [events] = (finished / "tensorboard").iterdir()
  written = events.read_bytes()
  shown = ("config/text_summary", "train/pictures", "train/loss", "test/prec@1")
  for name in (*shown, "time/images_per_sec"):
    assert name.encode() in written, name


def test_what_a_run_measures(finished):
  rows = metrics.read(str(finished / "metrics.jsonl"))
  assert [row["step"] for row in rows] == [2, 3, 4, 6]
  training = {
    "step",
    "loss",
    "lr",
    "l2_grads",
    "l2_params",
    "l2_updates",
    *(
      f"grad_norm{clipped}{mean}/{group}"
      for clipped in ("", "_clipped")
      for mean in ("", "_mean")
      for group in ("embedding", "block00")
    ),
  }
  evaluation = {"test/loss", "test/prec@1"}
  seeds = [f"-seed-{i}" for i in range(3)]
  fewshot = {f"fewshot/digits_{n}shot{s}" for n in (1, 2) for s in ["", *seeds]}
  assert set(rows[0]) == set(rows[2]) == training
  assert set(rows[1]) == {"step"} | evaluation
  assert set(rows[3]) == training | evaluation | fewshot
  # Warmup takes the first of six steps, cosine the other five; a row shows the
  # rate that made its step.
  cosine = [0.5 * (1 + np.cos(np.pi * (step - 2) / 5)) for step in (2, 4, 6)]
  assert [row["lr"] for row in rows if "lr" in row] == pytest.approx(
    [0.002 * c for c in cosine]
  )
  assert rows[3]["test/prec@1"] * 20 == pytest.approx(
    round(rows[3]["test/prec@1"] * 20)
  )
  norm = np.sqrt(
    sum(np.sum(np.float64(p) ** 2) for p in _params(finished).values())
  )
  assert rows[3]["l2_params"] == pytest.approx(norm, rel=1e-6)
  done = json.loads((finished / "done.json").read_text())
  assert done["step"] == 6
  assert done["metrics"] == {k: v for k, v in rows[3].items() if k != "step"}
  timing = metrics.read(str(finished / "timing.jsonl"))
  assert [row["step"] for row in timing] == [2, 4, 6]
  seconds = sum(row["seconds"] for row in timing)
  assert done["seconds"] == pytest.approx(seconds, abs=0.06)
  speeds = sorted(row["images_per_sec"] for row in timing)
  assert done["images_per_sec"] == speeds[1]
  assert done["core_hours"] == timing[-1]["core_hours"]
  assert done["mfu"] is None  # nobody knows a CPU's peak


def test_a_finished_run_is_left_alone(finished, capsys):
  before = {p: p.stat().st_mtime_ns for p in finished.glob("*.*")}
  loop.train(tiny_config(), str(finished))
  out = capsys.readouterr().out
  assert f"{finished} is done already; see done.json there." in out
  assert all(p.stat().st_mtime_ns == time for p, time in before.items())


# Each kills the process, as the kernel would, at one point of the program.
KILL_POINTS = {
  "after the metrics of step 4": """
write = metrics.Writer.write
def write_and_die(self, step, values, file=metrics.METRICS):
  write(self, step, values, file)
  if step == 4 and file == metrics.METRICS:
    while not os.path.exists(f"{workdir}/checkpoints/2"):
      time.sleep(0.01)  # it is being written
    die()
metrics.Writer.write = write_and_die
""",
  "while saving step 4": """
save = checkpoint.Checkpointer.save
def save_and_die(self, step, *args):
  save(self, step, *args)
  if step == 4:
    die()
checkpoint.Checkpointer.save = save_and_die
""",
  "before done.json": """
write_json = atomic.write_json
def write_json_and_die(path, value):
  if path.endswith("done.json"):
    die()
  write_json(path, value)
atomic.write_json = write_json_and_die
""",
}


def _die(workdir, point, config=None, **changes):
  """Trains in a process of its own, which is killed at `point`."""
  config = (config or tiny_config(**changes)).to_json()
  code = f"""
import json, os, signal, time
import ml_collections
from dpn import atomic, metrics
from dpn.weights import checkpoint
from dpn.trainers import loop
die = lambda: os.kill(os.getpid(), signal.SIGKILL)
workdir = {str(workdir)!r}
{KILL_POINTS[point]}
config = ml_collections.ConfigDict(json.loads({config!r}))
loop.train(config, workdir)
"""
  done = subprocess.run(
    [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
  )
  assert done.returncode == -signal.SIGKILL, done.stderr
  return done.stdout


@pytest.mark.slow
def test_a_run_that_was_killed_again_and_again(finished, tmp_path):
  workdir = tmp_path / "run"
  out = _die(workdir, "after the metrics of step 4")
  assert "from step 0: fresh parameters" in out
  assert metrics.read(str(workdir / "metrics.jsonl"))[-1]["step"] == 4
  # Here the save of step 4 may be finished by luck, but never half found.
  out = _die(workdir, "while saving step 4", **{"input.num_workers": 1})
  assert "from step 2: this run's checkpoint" in out
  out = _die(workdir, "before done.json", **{"input.num_threads": 1})
  assert "from step 2: this" in out or "from step 4: this" in out
  assert (workdir / "params.safetensors").exists()
  assert not (workdir / "done.json").exists()
  loop.train(tiny_config(), str(workdir))
  _assert_same_results(workdir, finished)


@pytest.mark.slow
def test_two_towers_that_were_killed(tmp_path):
  config, folder = conftest.contrastive_config(), tmp_path / "killed"
  loop.train(config, str(tmp_path / "whole"))
  _die(folder, "after the metrics of step 4", config)
  assert metrics.read(str(folder / "metrics.jsonl"))[-1]["step"] == 4
  loop.train(config, str(folder))
  _assert_same_results(folder, tmp_path / "whole")


def test_a_torn_log_and_a_lost_checkpoint(finished, tmp_path):
  """The latest checkpoint gone and half a line in the log change nothing."""
  workdir = tmp_path / "run"
  shutil.copytree(finished, workdir)
  (workdir / "done.json").unlink()
  shutil.rmtree(workdir / "checkpoints" / "6")
  path = workdir / "metrics.jsonl"
  path.write_bytes(path.read_bytes()[:-30])
  loop.train(tiny_config(), str(workdir))
  _assert_same_results(workdir, finished)


def test_fewer_steps_than_the_checkpoint(finished, tmp_path):
  workdir = tmp_path / "run"
  shutil.copytree(finished, workdir)
  (workdir / "done.json").unlink()
  with pytest.raises(ValueError, match=r"of step 6 .*total is 5 steps"):
    loop.train(
      tiny_config(total_steps=5), str(workdir), allow_config_change=True
    )
  config = json.loads((workdir / "config.json").read_text())
  assert config["total_steps"] == 6


def test_a_checkpoint_of_another_run(finished, tmp_path):
  """Of seed 0, in the folder of a run of seed 7."""
  workdir = tmp_path / "run"
  shutil.copytree(finished, workdir)
  (workdir / "done.json").unlink()
  configs = [tiny_config(seed=seed).to_dict() for seed in (0, 7)]
  here, other = map(workdir_lib.config_hash, configs)
  (workdir / "config.json").write_text(json.dumps(configs[1]))
  path = workdir / "environment.json"
  path.write_text(path.read_text().replace(here, other))
  said = f"another run.* hash {here}, and this run's have {other} "
  with pytest.raises(ValueError, match=said):
    loop.train(tiny_config(seed=7), str(workdir))
  # Its own config is enough, whatever became of the record.
  (workdir / "config.json").write_text(json.dumps(configs[0]))
  path.write_text('[{"config_hash": 1}, {}]')
  loop.train(tiny_config(), str(workdir))
  _assert_same_results(workdir, finished)


def test_earlier_ends_are_before_the_last(finished, tmp_path):
  """A kill as the run begins to go on past step 6; then it is to end there."""
  workdir = tmp_path / "run"
  shutil.copytree(finished, workdir)
  (workdir / "done.json").rename(workdir / "done-6.json")
  (workdir / "done-4.json").write_text("{}")
  loop.train(tiny_config(), str(workdir))
  done = json.loads((workdir / "done.json").read_text())
  assert done["extended_at"] == [4]


def test_a_log_that_has_lost_rows(finished, tmp_path, capsys):
  workdir = tmp_path / "run"
  shutil.copytree(finished, workdir)
  (workdir / "done.json").write_text("{")
  shutil.rmtree(workdir / "checkpoints" / "6")
  (workdir / "metrics.jsonl").write_text("[]\n")
  loop.train(tiny_config(), str(workdir))
  said = capsys.readouterr().out
  assert "metrics.jsonl has lost 3 of 3 rows." in said
  assert "done.json is damaged, expected JSON" in said
  done = json.loads((workdir / "done.json").read_text())
  assert done["lost_rows"] == 3
  assert done["damaged"] == ["metrics.jsonl.damaged"]
  whole = json.loads((finished / "done.json").read_text())
  assert not {"lost_rows", "damaged"} & whole.keys()


def test_where_a_run_starts_from(finished, tmp_path):
  """Own checkpoint, then config.resume, then config.model_init, then fresh."""
  weights = tmp_path / "weights.safetensors"
  file = {k: v + 1 for k, v in _params(finished).items()}
  safetensors.numpy.save_file(file, weights)
  config = tiny_config(
    resume=str(finished),
    model_init=str(weights),
    model_load={"dont_load": ["head/.*"]},
  )
  run = build.from_config(config)

  def start(checkpoints, *without):
    kept = {k: v for k, v in config.items() if k not in without}
    changed = dataclasses.replace(run, config=kept)
    state, position, source = build.initial_state(changed, checkpoints)
    params = {k: np.asarray(v) for k, v in trees.flatten(state.params).items()}
    return state, params, position, source

  def assert_same(got, want):
    assert got.keys() == want.keys()
    for name, value in want.items():
      np.testing.assert_array_equal(got[name], value, err_msg=name)

  own = checkpoint.Checkpointer(str(tmp_path / "checkpoints"))
  fresh, params, position, source = start(own, "resume", "model_init")
  assert (int(fresh.step), position["examples_seen"]) == (0, 0)
  assert source == "fresh parameters"
  head = {k: v for k, v in params.items() if k.startswith("head/")}

  state, params, position, source = start(own, "resume")
  assert (int(state.step), position["examples_seen"]) == (0, 0)
  assert source == str(weights)
  assert_same(params, {**file, **head})
  want = jax.tree.map(lambda s: s.sharding, run.step.shapes.params)
  assert jax.tree.map(lambda x: x.sharding, state.params) == want

  state, params, position, source = start(own)
  assert (int(state.step), position["examples_seen"]) == (6, 48)
  assert source == str(finished)
  assert_same(params, _params(finished))

  own.save(1, fresh.replace(step=fresh.step + 1), {"examples_seen": 8})
  own.close()
  own = checkpoint.Checkpointer(str(tmp_path / "checkpoints"))
  state, params, position, source = start(own)
  own.close()
  assert (int(state.step), position["examples_seen"]) == (1, 8)
  assert source == "this run's checkpoint"
  assert_same(params, trees.flatten(fresh.params))


def test_the_last_checkpoint_survives_divergence(tmp_path):
  # Warmup spares the first step.
  message = r"l2_params = inf.* at step 2; finite until step 1\."
  with pytest.raises(metrics.NonFiniteError, match=message):
    loop.train(tiny_config(lr=1e30, ckpt_steps=1), str(tmp_path))
  assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["1"]
  assert not (tmp_path / "done.json").exists()
  assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_divergence_between_two_rows_is_seen_before_an_evaluation(tmp_path):
  config = tiny_config(lr=1e30, log_training_steps=0, ckpt_steps=0)
  with pytest.raises(metrics.NonFiniteError, match=r"l2_params.* at step 3;"):
    loop.train(config, str(tmp_path))


def test_zero_means_at_the_end(tmp_path):
  loop.train(tiny_config(log_training_steps=0, ckpt_steps=0), str(tmp_path))
  rows = metrics.read(str(tmp_path / "metrics.jsonl"))
  assert [row["step"] for row in rows if "loss" in row] == [6]
  assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["6"]


def test_checkpoints_to_keep_and_an_evaluation_at_the_start(
  finished, tmp_path, monkeypatch
):
  config = tiny_config(**{"keep_ckpt_steps": 3, "evals.test.skip_first": False})

  def crash(progress, step):
    raise RuntimeError("killed")

  with monkeypatch.context() as patch:
    patch.setattr(log_lib.Progress, "tick", crash)
    with pytest.raises(RuntimeError, match="killed"):
      loop.train(config, str(tmp_path))
  loop.train(config, str(tmp_path))  # evaluates step 0 anew
  kept = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
  assert kept == ["3", "4", "6"]
  first, *rest = metrics.read(str(tmp_path / "metrics.jsonl"))
  assert first.keys() == {"step", "test/loss", "test/prec@1"}
  assert first["step"] == 0
  assert rest == metrics.read(str(finished / "metrics.jsonl"))


def test_no_steps_evaluate_the_parameters_given(finished, tmp_path):
  config = tiny_config(
    total_steps=0, model_init=str(finished / "params.safetensors")
  )
  loop.train(config, str(tmp_path))
  [row] = metrics.read(str(tmp_path / "metrics.jsonl"))
  last = metrics.read(str(finished / "metrics.jsonl"))[-1]
  want = {k: v for k, v in last.items() if k.startswith(("test/", "fewshot/"))}
  assert row == {"step": 0, **want}


def test_resuming_another_model(finished, tmp_path):
  config = tiny_config(**{"model.width": 32, "resume": str(finished)})
  message = (
    r"(?s)of another model.*params/cls: \(1, 1, 16\) there, \(1, 1, 32\)"
  )
  with pytest.raises(ValueError, match=message):
    loop.train(config, str(tmp_path / "run"))
  # In a run's own directory its config.json stays as it was.
  shutil.copytree(finished, tmp_path / "own")
  (tmp_path / "own" / "done.json").unlink()
  del config.resume
  with pytest.raises(ValueError, match=message):
    loop.train(config, str(tmp_path / "own"), allow_config_change=True)
  kept, want = (d / "config.json" for d in (tmp_path / "own", finished))
  assert kept.read_text() == want.read_text()


@pytest.mark.parametrize("step", [3, 6])
def test_a_run_that_is_asked_to_stop_while_it_evaluates(
  finished, tmp_path, monkeypatch, capsys, step
):
  """SIGTERM ends the evaluation; its whole row comes after the restart."""
  workdir, run = tmp_path / "run", mean.Evaluator.run
  steps = iter([3, 6])

  def run_and_ask(evaluator, variables):
    if next(steps) == step:
      os.kill(os.getpid(), signal.SIGTERM)
      pytest.fail("The evaluation went on.")
    return run(evaluator, variables)

  monkeypatch.setattr(mean.Evaluator, "run", run_and_ask)
  loop.train(tiny_config(), str(workdir))
  out = capsys.readouterr().out
  assert f"Asked to stop (SIGTERM), and saved step {step}." in out
  assert not (workdir / "done.json").exists()
  monkeypatch.undo()
  loop.train(tiny_config(), str(workdir))
  _assert_same_results(workdir, finished)


def test_a_run_that_is_asked_to_stop(finished, tmp_path, monkeypatch, capsys):
  """SIGTERM: the step is finished and saved; later it goes on."""
  workdir, tick = tmp_path / "run", log_lib.Progress.tick

  def tick_and_ask(progress, step):
    tick(progress, step)
    if step == 3:
      os.kill(os.getpid(), signal.SIGTERM)

  before = signal.getsignal(signal.SIGTERM)
  monkeypatch.setattr(log_lib.Progress, "tick", tick_and_ask)
  loop.train(tiny_config(), str(workdir))
  assert "Asked to stop (SIGTERM), and saved step 3." in capsys.readouterr().out
  assert signal.getsignal(signal.SIGTERM) is before
  assert not (workdir / "done.json").exists()
  monkeypatch.undo()
  loop.train(tiny_config(), str(workdir))
  assert "from step 3: this run's checkpoint" in capsys.readouterr().out
  _assert_same_results(workdir, finished)


def test_the_export_belongs_to_the_run(finished, tmp_path, monkeypatch):
  """Neither SIGTERM nor a second run comes between it and the end."""
  workdir, save_params = tmp_path / "run", checkpoint.save_params
  shutil.copytree(finished, workdir)
  (workdir / "done.json").unlink()

  def ask_and_save(*args):
    os.kill(os.getpid(), signal.SIGTERM)
    with (
      pytest.raises(ValueError, match="Another run is using"),
      workdir_lib.lock(str(workdir), tiny_config().to_dict()),
    ):
      pass
    save_params(*args)

  monkeypatch.setattr(checkpoint, "save_params", ask_and_save)
  loop.train(tiny_config(), str(workdir))
  _assert_same_results(workdir, finished)
  assert ends.is_done(str(workdir))


def test_the_average_is_evaluated_resumed_and_exported(finished, tmp_path):
  config = tiny_config(ema_decay=0.999)
  loop.train(config, str(tmp_path / "whole"))
  _die(tmp_path / "cut", "after the metrics of step 4", ema_decay=0.999)
  loop.train(config, str(tmp_path / "cut"))
  _assert_same_results(tmp_path / "cut", tmp_path / "whole")
  rows, plain = (
    metrics.read(str(d / "metrics.jsonl"))
    for d in (tmp_path / "whole", finished)
  )
  # Training is the same; evaluation sees the average, which lags behind.
  assert rows[-1]["loss"] == plain[-1]["loss"]
  assert rows[-1]["test/loss"] != plain[-1]["test/loss"]
  head = "head/kernel"
  assert not np.allclose(
    _params(tmp_path / "whole")[head], _params(finished)[head]
  )


@pytest.mark.parametrize(
  ("decay", "message"),
  [
    (0.9, "holds no moving average.*ema_decay is set"),
    (None, "holds a moving"),
  ],
)
def test_resuming_with_an_average_on_one_side(
  finished, tmp_path, decay, message
):
  averaged = build.from_config(tiny_config(ema_decay=0.9))
  if decay is None:
    other = checkpoint.Checkpointer(str(tmp_path / "other" / "checkpoints"))
    other.save(1, averaged.step.init(jax.random.key(0)), {"examples_seen": 8})
    other.close()
    finished = tmp_path / "other"
  config = tiny_config(ema_decay=decay, resume=str(finished))
  with pytest.raises(checkpoint.MismatchError, match=message):
    loop.train(config, str(tmp_path / "run"))


def _press_ctrl_c(monkeypatch, step):
  """Makes a run's step get a Ctrl-C, also where those are ignored."""
  tick = log_lib.Progress.tick

  def tick_and_press(progress, at):
    tick(progress, at)
    if at == step:
      os.kill(os.getpid(), signal.SIGINT)

  monkeypatch.setattr(log_lib.Progress, "tick", tick_and_press)
  signal.signal(signal.SIGINT, signal.default_int_handler)


def test_ctrl_c_saves(finished, tmp_path, monkeypatch, capfd):
  """Like SIGTERM, but whoever called is told by an exception."""
  workdir = tmp_path / "run"
  _press_ctrl_c(monkeypatch, 3)
  message = r"^Ctrl-C: saved step 3\. The same command resumes from there\.$"
  with pytest.raises(KeyboardInterrupt, match=message):
    loop.train(tiny_config(), str(workdir))
  assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
  assert "Again, it ends at once, unsaved." in capfd.readouterr().err
  monkeypatch.undo()
  loop.train(tiny_config(), str(workdir))
  _assert_same_results(workdir, finished)


def test_a_finished_run_goes_on(finished, tmp_path, capsys):
  workdir = tmp_path / "run"
  shutil.copytree(finished, workdir)
  (workdir / "test.json").write_text('{"test/prec@1": 0.5}')
  longer = tiny_config(total_steps=9)
  message = r"(?s)total_steps: 6 there, 9 now.*if this finished run is to train"
  with pytest.raises(ValueError, match=message):
    loop.train(longer, str(workdir))
  loop.train(longer, str(workdir), allow_config_change=True)
  said = " ".join(capsys.readouterr().out.split())
  assert f"{workdir} was done at step 6 and goes on to 9." in said
  assert (
    "Results until now: params-6.safetensors, test-6.json, done-6.json." in said
  )
  assert not (workdir / "test.json").exists()
  done = json.loads((workdir / "done.json").read_text())
  assert (done["step"], done["extended_at"]) == (9, [6])
  for name in ("params", "done"):
    [old] = finished.glob(f"{name}.*")
    kept = workdir / f"{name}-6{old.suffix}"
    assert kept.read_bytes() == old.read_bytes()
  rows = metrics.read(str(workdir / "metrics.jsonl"))
  assert [row["step"] for row in rows] == [2, 3, 4, 6, 8, 9]
  assert rows[:4] == metrics.read(str(finished / "metrics.jsonl"))
  # The cosine over the eight steps after the warmup, from here on.
  cosine = 0.5 * (1 + np.cos(np.pi * (8 - 2) / 8))
  assert rows[4]["lr"] == pytest.approx(0.002 * cosine)
  loop.train(longer, str(workdir), allow_config_change=True)
  said = " ".join(capsys.readouterr().out.split())
  assert "is done already, at step 9: more steps than these" in said
  with pytest.raises(ValueError, match=r"of step 9 .*total is 6 steps"):
    loop.train(tiny_config(), str(workdir), allow_config_change=True)
  shutil.rmtree(workdir / "checkpoints")
  message = r"no checkpoint from which it could go on\. .*config\.model_init="
  with pytest.raises(ValueError, match=message):
    loop.train(
      tiny_config(total_steps=12), str(workdir), allow_config_change=True
    )
  assert (workdir / "done.json").exists()
