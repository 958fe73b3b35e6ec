"""Whole runs: what they leave, and that they resume exactly."""

import dataclasses
import itertools
import json
import os
import shutil
import signal

import jax
import numpy as np
import pytest
import safetensors.numpy

from dpn import errors, metrics, trees
from dpn.evaluators import mean
from dpn.trainers import build, conftest, distributed, loop, mean_loss, restore
from dpn.trainers import workdir as workdir_lib
from dpn.trainers.conftest import tiny_config
from dpn.weights import checkpoint, files

_rows, _params = conftest.rows, conftest.params


@pytest.fixture(scope="module", name="finished")
def _finished(tmp_path_factory):
  """The working directory of a run that nothing disturbed."""
  workdir = tmp_path_factory.mktemp("run") / "finished"
  loop.train(tiny_config(), str(workdir))
  return workdir


@pytest.fixture(name="unfinished")
def _unfinished(finished, tmp_path):
  """A copy of it that is not marked as done."""
  workdir = shutil.copytree(finished, tmp_path / "run")
  (workdir / "done.json").unlink()
  return workdir


def _json(workdir, name="done"):
  return json.loads((workdir / f"{name}.json").read_text())


def _names(folder):
  return sorted(path.name for path in folder.iterdir())


def _assert_same_results(workdir, other):
  for name in ("metrics.jsonl", "params.safetensors", "config.json"):
    assert (workdir / name).read_bytes() == (other / name).read_bytes(), name
  for name in ("metrics", "step"):
    assert _json(workdir)[name] == _json(other)[name]


def _crash(config, workdir, step):
  with conftest.killed_at(step):
    loop.train(config, str(workdir))


def _extend(config, workdir):
  loop.train(config, str(workdir), allow_config_change=True)


def test_what_a_run_leaves(finished):
  assert _names(finished) == [
    *("checkpoints", "config.json", "done.json", "environment.json", "lock"),
    *("metrics.jsonl", "params.safetensors", "tensorboard", "timing.jsonl"),
  ]
  assert _names(finished / "checkpoints") == ["4", "6"]
  assert _json(finished, "config")["model"]["stem_ln"] == "dpn"
  params = _params(finished)
  assert {p.dtype.name for p in params.values()} == {"float32"}
  assert params["embedding/kernel"].shape == (8, 8, 1, 16)
  assert params["stem/ln0/scale"].shape == (64,)
  [events] = (finished / "tensorboard").iterdir()
  shown = ("config/text_summary", "train/pictures", "train/loss", "test/prec@1")
  for name in (*shown, "time/images_per_sec"):
    assert name.encode() in events.read_bytes(), name


def test_what_a_run_measures(finished):
  rows = _rows(finished)
  assert [row["step"] for row in rows] == [2, 3, 4, 6]
  training = {
    *("step", "loss", "lr", "l2_grads", "l2_params", "l2_updates"),
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
  correct = rows[3]["test/prec@1"] * 20
  assert correct == pytest.approx(round(correct))
  params = _params(finished).values()
  norm = np.sqrt(sum(np.sum(np.float64(p) ** 2) for p in params))
  assert rows[3]["l2_params"] == pytest.approx(norm, rel=1e-6)
  done = _json(finished)
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


def test_a_run_that_crashed_twice_resumes_exactly(finished, tmp_path):
  """With other threads and workers each time; its log was torn, too."""
  workdir = tmp_path / "run"
  _crash(tiny_config(), workdir, 4)
  assert _names(workdir / "checkpoints") == ["2"]
  _crash(tiny_config(**{"input.num_threads": 1}), workdir, 6)
  path = workdir / "metrics.jsonl"
  path.write_bytes(path.read_bytes() + b'{"step": 6, "loss')
  loop.train(tiny_config(), str(workdir))
  _assert_same_results(workdir, finished)


def test_the_loss_is_the_mean_since_the_last_row(tmp_path):
  """Also if a checkpoint, here at step 3, comes between two rows."""
  of = lambda steps: tiny_config(**{"log_training_steps": steps, "evals": {}})
  loop.train(of(1), str(tmp_path / "each"))
  each = [row["loss"] for row in _rows(tmp_path / "each")]
  config = of(4)
  config.ckpt_steps = 3
  _crash(config, tmp_path / "means", 5)
  loop.train(config, str(tmp_path / "means"))
  rows = {row["step"]: row["loss"] for row in _rows(tmp_path / "means")}
  assert rows == {
    4: pytest.approx(np.mean(each[:4]), rel=1e-6),
    6: pytest.approx(np.mean(each[4:]), rel=1e-6),
  }


@pytest.mark.slow
def test_two_towers_resume_exactly(tmp_path):
  config, folder = conftest.contrastive_config(), tmp_path / "killed"
  loop.train(config, str(tmp_path / "whole"))
  _crash(config, folder, 5)
  loop.train(config, str(folder))
  _assert_same_results(folder, tmp_path / "whole")


def test_flags_that_processes_compare(monkeypatch):
  flags = "--xla_b=2  --xla_dump_to=/tmp/of-0 --xla_a=1"
  monkeypatch.setenv("XLA_FLAGS", flags)
  monkeypatch.delenv("LIBTPU_INIT_ARGS", raising=False)
  found = loop._command(tiny_config(), "runs", [False], False)
  assert found["XLA_FLAGS"] == ["--xla_a=1", "--xla_b=2"]
  assert found["LIBTPU_INIT_ARGS"] == []


def test_fewer_steps_than_the_checkpoint(unfinished):
  with pytest.raises(ValueError, match=r"of step 6 .*total is 5 steps"):
    _extend(tiny_config(total_steps=5), unfinished)
  assert _json(unfinished, "config")["total_steps"] == 6


def test_a_checkpoint_of_another_run(finished, unfinished):
  """Of seed 0, in the folder of a run of seed 7."""
  configs = [tiny_config(seed=seed).to_dict() for seed in (0, 7)]
  here, other = map(workdir_lib.config_hash, configs)
  (unfinished / "config.json").write_text(json.dumps(configs[1]))
  path = unfinished / "environment.json"
  path.write_text(path.read_text().replace(here, other))
  said = f"another run.* hash {here}, and this run's have {other} "
  with pytest.raises(ValueError, match=said):
    loop.train(tiny_config(seed=7), str(unfinished))
  # Its own config is enough, whatever became of the record.
  (unfinished / "config.json").write_text(json.dumps(configs[0]))
  path.write_text('[{"config_hash": 1}, {}]')
  loop.train(tiny_config(), str(unfinished))
  _assert_same_results(unfinished, finished)


def test_a_log_that_has_lost_rows(finished, unfinished, capsys):
  """The run was extended before, too, and killed as it began to go on."""
  for step in (4, 6):
    (unfinished / f"done-{step}.json").write_text("{}")
  (unfinished / "done.json").write_text("{")
  shutil.rmtree(unfinished / "checkpoints" / "6")
  (unfinished / "metrics.jsonl").write_text("[]\n")
  loop.train(tiny_config(), str(unfinished))
  said = capsys.readouterr().out
  assert "metrics.jsonl has lost 3 of 3 rows." in said
  assert "done.json is damaged, expected JSON" in said
  done = _json(unfinished)
  assert done["lost_rows"] == 3
  assert done["damaged"] == ["metrics.jsonl.damaged"]
  assert done["extended_at"] == [4]
  assert not {"lost_rows", "damaged", "extended_at"} & _json(finished).keys()


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
    state, position, source = restore.initial_state(changed, checkpoints)
    params = {k: np.asarray(v) for k, v in trees.flatten(state.params).items()}
    stands = int(state.step), position["examples_seen"], source
    return state, params, stands

  own = checkpoint.Checkpointer(str(tmp_path / "checkpoints"))
  fresh, params, stands = start(own, "resume", "model_init")
  assert stands == (0, 0, "fresh parameters")
  head = {k: v for k, v in params.items() if k.startswith("head/")}

  state, params, stands = start(own, "resume")
  assert stands == (0, 0, str(weights))
  np.testing.assert_equal(params, {**file, **head})
  want = jax.tree.map(lambda s: s.sharding, run.step.shapes.params)
  assert jax.tree.map(lambda x: x.sharding, state.params) == want

  state, params, stands = start(own)
  assert stands == (6, 48, str(finished))
  np.testing.assert_equal(params, _params(finished))

  own.save(1, fresh.replace(step=fresh.step + 1), {"examples_seen": 8})
  own.close()
  own = checkpoint.Checkpointer(str(tmp_path / "checkpoints"))
  state, params, stands = start(own)
  own.close()
  assert stands == (1, 8, "this run's checkpoint")
  np.testing.assert_equal(params, trees.flatten(fresh.params))


def test_the_last_checkpoint_survives_divergence(tmp_path):
  # Warmup spares the first step.
  message = r"l2_params = inf.* at step 2; finite until step 1\..*\n.* params/"
  with pytest.raises(errors.NonFiniteError, match=message):
    loop.train(tiny_config(lr=1e30, ckpt_steps=1), str(tmp_path))
  assert _names(tmp_path / "checkpoints") == ["1"]
  assert "at step 2" in (tmp_path / "diverged.txt").read_text()
  assert not (tmp_path / "done.json").exists()
  assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_divergence_between_two_rows_is_seen_before_an_evaluation(tmp_path):
  config = tiny_config(lr=1e30, log_training_steps=0, ckpt_steps=0)
  with pytest.raises(errors.NonFiniteError, match=r"l2_params.* at step 3;"):
    loop.train(config, str(tmp_path))


def test_zero_means_at_the_end(tmp_path):
  loop.train(tiny_config(log_training_steps=0, ckpt_steps=0), str(tmp_path))
  assert [row["step"] for row in _rows(tmp_path) if "loss" in row] == [6]
  assert _names(tmp_path / "checkpoints") == ["6"]


def test_checkpoints_to_keep_and_an_evaluation_at_the_start(finished, tmp_path):
  config = tiny_config(**{"keep_ckpt_steps": 3, "evals.test.skip_first": False})
  _crash(config, tmp_path, 1)
  loop.train(config, str(tmp_path))  # evaluates step 0 anew
  assert _names(tmp_path / "checkpoints") == ["3", "4", "6"]
  first, *rest = _rows(tmp_path)
  assert first.keys() == {"step", "test/loss", "test/prec@1"}
  assert first["step"] == 0
  assert rest == _rows(finished)


def test_no_steps_evaluate_the_parameters_given(finished, tmp_path):
  start = str(finished / "params.safetensors")
  config = tiny_config(total_steps=0, model_init=start)
  loop.train(config, str(tmp_path))
  [row], last = _rows(tmp_path), _rows(finished)[-1]
  want = {k: v for k, v in last.items() if k.startswith(("test/", "fewshot/"))}
  assert row == {"step": 0, **want}


def test_resuming_another_model(finished, unfinished, tmp_path):
  config = tiny_config(**{"model.width": 32, "resume": str(finished)})
  message = (
    r"(?s)of another model.*params/cls: float32\(1, 1, 16\) there, "
    r"float32\(1, 1, 32\) here"
  )
  with pytest.raises(ValueError, match=message):
    loop.train(config, str(tmp_path / "other"))
  # In a run's own directory its config.json stays as it was.
  del config.resume
  with pytest.raises(ValueError, match=message):
    _extend(config, unfinished)
  assert _json(unfinished, "config") == _json(finished, "config")


@pytest.mark.parametrize("step", [3, 6])
def test_sigterm_in_evaluation(finished, tmp_path, monkeypatch, capsys, step):
  """The whole row comes after the restart."""
  run, steps = mean.Evaluator.run, iter([3, 6])

  def run_and_ask(evaluator, variables):
    if next(steps) == step:
      os.kill(os.getpid(), signal.SIGTERM)
      pytest.fail("The evaluation went on.")
    return run(evaluator, variables)

  monkeypatch.setattr(mean.Evaluator, "run", run_and_ask)
  loop.train(tiny_config(), str(tmp_path))
  out = capsys.readouterr().out
  assert f"Asked to stop (SIGTERM), and saved step {step}." in out
  assert not (tmp_path / "done.json").exists()
  monkeypatch.undo()
  loop.train(tiny_config(), str(tmp_path))
  _assert_same_results(tmp_path, finished)
  if step == 6:  # that step's results stay
    more = tiny_config(total_steps=7)
    with conftest.killed_at(7):
      _extend(more, tmp_path)
    loop.train(more, str(tmp_path))
    assert _rows(tmp_path)[:4] == _rows(finished)


@pytest.mark.parametrize("step", [3, 4, 5])
def test_a_run_that_is_to_end_where_it_was_stopped(tmp_path, monkeypatch, step):
  calls = itertools.count()  # the first is before compiling
  stop = lambda handler: next(calls) == step
  monkeypatch.setattr(distributed.PreemptionHandler, "should_stop", stop)
  loop.train(tiny_config(), str(tmp_path))
  _extend(tiny_config(total_steps=step), tmp_path)
  *_, last = rows = _rows(tmp_path)
  assert [row["step"] for row in rows] == [2, 3, 4, 5][: step - 1]
  assert {"loss", "test/prec@1", "fewshot/digits_2shot"} <= last.keys()
  assert _json(tmp_path)["metrics"] == {k: last[k] for k in last if k != "step"}
  assert "lost_rows" not in _json(tmp_path)
  added, add = [], mean_loss.MeanLoss.add
  spy = lambda self, loss: (added.append(float(loss)), add(self, loss))
  monkeypatch.setattr(mean_loss.MeanLoss, "add", spy)
  _extend(tiny_config(), tmp_path)
  assert len(added) == 6 - step
  assert _rows(tmp_path)[-1]["loss"] == pytest.approx(np.mean(added[-2:]))


def test_a_finished_run_whose_last_checkpoint_is_damaged(finished, tmp_path):
  workdir = shutil.copytree(finished, tmp_path / "run")
  (workdir / "checkpoints" / "6" / "_CHECKPOINT_METADATA").write_text("{")
  _extend(tiny_config(total_steps=7), workdir)
  assert _json(workdir, "done-6")["step"] == 6
  assert not (workdir / "done-4.json").exists()


def test_sigterm_before_the_first_step(tmp_path, monkeypatch, capsys):
  """Compiling, which may outlast the time that is left, is not begun."""
  ask = lambda *unused: os.kill(os.getpid(), signal.SIGTERM)
  monkeypatch.setattr(loop.log_lib, "begin", ask)
  monkeypatch.setattr(loop.seeds_lib.Together, "compile", pytest.fail)
  loop.train(tiny_config(), str(tmp_path))
  said = capsys.readouterr().out
  assert "Asked to stop (SIGTERM), and no step is done." in said


def test_sigterm_and_ctrl_c_let_a_run_save(finished, tmp_path, capfd):
  """The step is finished; after Ctrl-C the caller gets an exception."""
  ask = lambda number: lambda: os.kill(os.getpid(), number)
  before = signal.getsignal(signal.SIGTERM)
  with conftest.at_step(3, ask(signal.SIGTERM)):
    loop.train(tiny_config(), str(tmp_path))
  said = capfd.readouterr().out
  assert "Asked to stop (SIGTERM), and saved step 3." in said
  assert signal.getsignal(signal.SIGTERM) is before
  assert not (tmp_path / "done.json").exists()
  signal.signal(signal.SIGINT, signal.default_int_handler)  # perhaps ignored
  message = r"^Ctrl-C: saved step 5\. The same command resumes from there\.$"
  with (
    conftest.at_step(5, ask(signal.SIGINT)),
    pytest.raises(KeyboardInterrupt, match=message),
  ):
    loop.train(tiny_config(), str(tmp_path))
  assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
  said = capfd.readouterr()
  assert "from step 3: this run's checkpoint" in said.out
  assert "Again, it ends at once, unsaved." in said.err
  loop.train(tiny_config(), str(tmp_path))
  _assert_same_results(tmp_path, finished)


def test_the_export_belongs_to_the_run(finished, unfinished, monkeypatch):
  """Neither SIGTERM nor a second run comes between it and the end."""
  save_params = files.save_params

  def ask_and_save(*args):
    os.kill(os.getpid(), signal.SIGTERM)
    with (
      pytest.raises(ValueError, match="Another run is using"),
      workdir_lib.lock(str(unfinished), tiny_config().to_dict()),
    ):
      pass
    save_params(*args)

  monkeypatch.setattr(files, "save_params", ask_and_save)
  loop.train(tiny_config(), str(unfinished))
  _assert_same_results(unfinished, finished)


def test_the_average_is_evaluated_resumed_and_exported(finished, tmp_path):
  config, whole = tiny_config(ema_decay=0.999), tmp_path / "whole"
  loop.train(config, str(whole))
  _crash(config, tmp_path / "cut", 5)
  loop.train(config, str(tmp_path / "cut"))
  _assert_same_results(tmp_path / "cut", whole)
  # Training is the same; evaluation sees the average, which lags behind.
  averaged, plain = _rows(whole)[-1], _rows(finished)[-1]
  assert averaged["loss"] == plain["loss"]
  assert averaged["test/loss"] != plain["test/loss"]
  head = "head/kernel"
  assert not np.allclose(_params(whole)[head], _params(finished)[head])
  # A state with an average does not fit a run without, and the other way round.
  for decay, source in ((0.9, finished), (None, whole)):
    message = "holds a moving" if decay is None else "ema_decay is set"
    changed = tiny_config(ema_decay=decay, resume=str(source))
    with pytest.raises(checkpoint.MismatchError, match=message):
      loop.train(changed, str(tmp_path / "other"))


def test_a_finished_run_goes_on(finished, tmp_path, capsys):
  workdir = shutil.copytree(finished, tmp_path / "run")
  (workdir / "test.json").write_text('{"test/prec@1": 0.5}')
  longer = tiny_config(total_steps=9)
  said = lambda: " ".join(capsys.readouterr().out.split())
  message = r"(?s)total_steps: 6 there, 9 now.*if this finished run is to train"
  with pytest.raises(ValueError, match=message):
    loop.train(longer, str(workdir))
  _extend(longer, workdir)
  text = said()
  assert f"{workdir} was done at step 6 and goes on to 9." in text
  kept = "params-6.safetensors, test-6.json, done-6.json."
  assert f"Results until now: {kept}" in text
  assert not (workdir / "test.json").exists()
  done = _json(workdir)
  assert (done["step"], done["extended_at"]) == (9, [6])
  for name in ("params-6.safetensors", "done-6.json"):
    old = finished / name.replace("-6", "")
    assert (workdir / name).read_bytes() == old.read_bytes()
  rows = _rows(workdir)
  assert [row["step"] for row in rows] == [2, 3, 4, 6, 8, 9]
  assert rows[:4] == _rows(finished)
  # The cosine over the eight steps after the warmup, from here on.
  cosine = 0.5 * (1 + np.cos(np.pi * (8 - 2) / 8))
  assert rows[4]["lr"] == pytest.approx(0.002 * cosine)
  _extend(longer, workdir)
  assert "is done already, at step 9: more steps than these" in said()
  with pytest.raises(ValueError, match=r"of step 9 .*total is 6 steps"):
    _extend(tiny_config(), workdir)
  shutil.rmtree(workdir / "checkpoints")
  message = r"no checkpoint from which it could go on\. .*config\.model_init="
  with pytest.raises(ValueError, match=message):
    _extend(tiny_config(total_steps=12), workdir)
  assert (workdir / "done.json").exists()
