"""Whatever is wrong with a run is said in one clear message."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpn.input_pipeline import sources
from dpn.tasks import classification
from dpn.trainers import build, conftest, loop, seeds, train, update
from dpn.trainers.conftest import tiny_config
from dpn.weights import checkpoint


# One of each stage; the other messages are tested beside what checks.
@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"total_step": 1}, "Unknown key in config: 'total_step'.*'total_steps'"),
    ({"input.batch_size": 6}, "config.input.batch_size=6 cannot be split over"),
    ({"num_classes": 11}, r"logits \(8, 11\) and labels \(8, 10\)"),
    ({"schedule": None}, "freezes every parameter: nothing would be trained"),
    ({"model.stemln": "dpn"}, "Unknown model option 'stemln'.*mean 'stem_ln'"),
    (
      {"evals.test.label_key": "label"},
      r"config.evals.test: Unknown label_key 'label'. Did you mean 'labels'",
    ),
    (
      {"input.data": {"name": "imagenet2012", "split": "a", "data_dir": "/x"}},
      "There is no TFDS directory /x",
    ),
  ],
)
def test_wrong_configs_leave_nothing_behind(tmp_path, changes, message):
  with pytest.raises(ValueError, match=message):
    loop.train(tiny_config(**changes), str(tmp_path / "run"))
  assert not (tmp_path / "run").exists()


def test_a_run_to_resume_that_is_not_there(tmp_path):
  with pytest.raises(FileNotFoundError, match="There is no '/nowhere'"):
    loop.train(tiny_config(resume="/nowhere"), str(tmp_path / "run"))
  (tmp_path / "checkpoints").mkdir()
  (tmp_path / "params-4.safetensors").write_text("")  # not those of step 4
  other = tiny_config(resume=str(tmp_path / "params-4.safetensors"))
  with pytest.raises(FileNotFoundError, match=r"params-4\.\S* is no folder of"):
    loop.train(other, str(tmp_path / "run"))


@pytest.mark.parametrize(
  ("loss", "message"),
  [
    (lambda: ({"loss": jnp.zeros(())}, {}), r"shapes \{'loss': \(\)\}, exp"),
    (lambda: {"loss": jnp.zeros(8)}, r"shapes \{'loss': \(8,\)\}, exp"),
    (
      lambda: ({"error": jnp.zeros(8)}, {}),
      r"expected \(\{'loss': \(8,\), …\}",
    ),
    (lambda: ({"loss": None}, {}), "the numbers of each example, not their"),
  ],
)
def test_what_a_task_must_measure(monkeypatch, loss, message):
  measure = lambda self, variables, batch, rng=None: loss()
  monkeypatch.setattr(classification.Classification, "measure", measure)
  said = rf"config.task='classification': `measure` returned .*{message}"
  with pytest.raises(ValueError, match=said):
    build.from_config(tiny_config())


def test_what_a_task_must_initialize(monkeypatch):
  init = lambda self, rng, batch: {"kernel": jnp.zeros(3)}
  monkeypatch.setattr(classification.Classification, "init", init)
  said = r"config.task='classification': `init` returned \['kernel'\], expected"
  with pytest.raises(ValueError, match=said):
    build.from_config(tiny_config())


def test_no_folder_for_checkpoints(tmp_path):
  """Orbax alone would say so late, and in a thread of its own."""
  (tmp_path / "checkpoints").write_text("")
  message = r"Cannot write checkpoints to .*/checkpoints"
  with pytest.raises(OSError, match=message):
    checkpoint.Checkpointer(str(tmp_path / "checkpoints"))


@pytest.mark.parametrize("kind", [jax.errors.JaxRuntimeError, ValueError])
def test_out_of_memory_names_three_knobs(kind):
  def run(error):
    raise error

  lacking = kind("RESOURCE_EXHAUSTED: Out of memory, 9 GiB")
  with pytest.raises(SystemExit, match="Out of memory, 9 GiB") as error:
    train._explaining(lambda: run(lacking))
  for knob in ("grad_accum", "model.remat_policy", "sharding_strategy"):
    assert f"config.{knob}=" in str(error.value)
  full = OSError("Cannot write a checkpoint: RESOURCE_EXHAUSTED: Error")
  with pytest.raises(OSError, match=r"^Cannot write"):
    train._explaining(lambda: run(full))


def test_divergence_names_the_arrays():
  params = {"a": np.ones(2), "b": {"c": np.array([1, np.nan])}}
  state = update.TrainState(1, params, {}, -np.inf)
  assert seeds.not_finite(state) == "Not finite now: params/b/c, opt_state."
  params["b"]["c"] = np.array([1, -9.0])
  state = update.TrainState(1, params, {}, 0)
  said = "Finite still, but largest: params/b/c, 9."
  assert seeds.not_finite(state) == said


def test_skipped_examples_are_counted_across_a_restart(tmp_path):
  workdir = str(tmp_path)
  config = tiny_config(total_steps=10, log_training_steps=5, ckpt_steps=6)
  config.evals = {}
  config.num_classes = 9  # So the nines do not fit.
  config.input.pp = config.input.pp.replace(
    'onehot(10, key="label"', 'copy("label", "digit")|onehot(9, key="digit"'
  )  # as the source's own key has ten classes, which is noticed at once
  config.input.on_error = "skip"

  source = sources.make(config.input.data.to_dict())
  nine = [source[i]["label"] == 9 for i in range(40)]
  # One stands in for each nine; where that is a nine, too, the one after it.
  twice = nine + nine
  per_epoch = sum(twice[i : i + 40].index(False) for i in range(40))
  assert per_epoch >= 2

  with conftest.killed_at(8):
    loop.train(config, workdir)
  loop.train(config, workdir)
  counts = {row["step"]: row["skipped"] for row in conftest.rows(tmp_path)}
  assert counts == {5: per_epoch, 10: 2 * per_epoch}


def test_no_silent_fallback_to_the_cpu(tmp_path, monkeypatch):
  (tmp_path / "nvidia0").touch()
  monkeypatch.setattr(train, "NVIDIA", f"{tmp_path}/nvidia[0-9]*")
  train._check_backend()  # conftest.py has chosen the CPU
  monkeypatch.delenv("JAX_PLATFORMS")
  monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # as Slurm does
  with pytest.raises(OSError, match=r"fallen back .*JAX_PLATFORMS=cpu"):
    train._check_backend()
  monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
  train._check_backend()
