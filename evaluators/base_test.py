"""Evaluators made from configs: their schedule, names and errors."""

import types

import flax.errors
import jax.numpy as jnp
import numpy as np
import pytest

from dpn import errors, sharding
from dpn.evaluators import base
from dpn.input_pipeline.pp import ops_text

SIZES = {"total_steps": 200, "batch_size": 8, "data_size": 80}
PREDICT_FNS = {
  "predict": lambda variables, batch: (variables["params"] * batch["x"], {}),
  "loss": lambda variables, batch: {"x": variables["params"] * batch["x"]},
}


@pytest.fixture(name="section")
def _section(save):
  """Returns the config of a mean over 1, 2, 3."""
  data = save(x=np.float32([1, 2, 3]))
  return {"type": "mean", "data": data, "pp_fn": "", "log_steps": 5}


def _make(sections, predict_fns=PREDICT_FNS, **config):
  config = {"evals": sections, **config}
  return base.from_config(config, predict_fns, sharding.make_mesh(), SIZES)


def test_names_and_schedules(section):
  evaluators = _make(
    {
      "own": section,
      "default": {**section, "log_steps": None},
      "epochs": {**section, "log_steps": None, "log_epochs": 2},
      "percent": {**section, "log_steps": None, "log_percent": 0.1},
    },
    log_eval_steps=7,
  )
  want = {"own": 5, "default": 7, "epochs": 20, "percent": 20}
  assert {e.name: e.every_steps for e in evaluators} == want
  got = evaluators[0].run({"params": jnp.float32(10)})
  assert got == {"own/x": pytest.approx(20.0)}
  assert isinstance(got["own/x"], float)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"type": "clasification"}, "Unknown type.*mean 'classification'"),
    ({"type": None}, "Unknown type None"),
    ({"pred": "predicts"}, "Unknown pred 'predicts'.*mean 'predict'"),
    ({"pp": "decode"}, "Unknown key 'pp'.*mean 'pp_fn'"),
    ({"predict_fn": 1}, "Unknown key 'predict_fn'"),
    ({"log_steps": None}, "how often it runs is missing"),
    ({"log_steps": 0}, "how often it runs is missing"),
    ({"log_epochs": 1}, "config.log_epochs=1; expected one"),
    ({"batch_size": 6}, "batch_size=6 cannot be split over 4 devices"),
    ({"pp_fn": "flip_rl"}, "Unknown op 'flip_rl'. Did you mean 'flip_lr'"),
    ({"data": {"name": "imagenet"}}, "needs a name and a split"),
    ({"data": 3}, "data must be of type dict, got 3"),
    ({"cache_final": "False"}, "cache_final must be of type bool, got 'False'"),
    ({"prefix": ""}, "prefix='' is that of training, too"),
    ({"type": "classification", "loss_name": "xent"}, "Unknown loss 'xent'"),
  ],
)
def test_errors_name_the_evaluator(section, changes, message):
  with pytest.raises(ValueError, match=rf"^config.evals.val: .*{message}"):
    _make({"val": {**section, **changes}})


def test_none_is_no_evaluator():
  with pytest.raises(ValueError, match=r"evals.val: it is None. Leave it out"):
    _make({"val": None})


def test_two_evaluators_with_one_prefix(section):
  message = r"^config.evals.b: prefix='a/' is that of config.evals.a, too"
  with pytest.raises(ValueError, match=message):
    _make({"a": section, "b": {**section, "prefix": "a/"}})


@pytest.mark.parametrize(
  ("found", "message"),
  [
    (None, "TypeError: expected a dictionary of numbers, got None"),
    (np.ones(2), r"expected a dictionary of numbers, got array\(\[1., 1.\]\)"),
    ({"x": np.ones(2)}, "TypeError: only "),
    (
      {"x": 1.0, "y": np.nan, "z": -np.inf},
      r"ValueError: expected finite numbers, got val/y = nan, val/z = -inf\.$",
    ),
  ],
)
def test_results_that_are_no_finite_numbers(found, message):
  evaluator = types.SimpleNamespace(run=lambda variables: found)
  scheduled = base.Scheduled("val", evaluator, 1, "val/")
  with pytest.raises(
    errors.EvaluatorError, match=f"^Evaluator 'val' failed: .*{message}"
  ):
    scheduled.run({})


@pytest.mark.parametrize(
  ("error", "said"),
  [
    (TypeError("bad"), "bad"),
    (flax.errors.FlaxError("bad"), "bad"),
    (ValueError("bad"), "bad"),
    (KeyError("bad"), "no 'bad' in its batch"),
  ],
)
def test_models_that_the_data_do_not_fit(section, error, said):
  def predict(variables, batch):
    raise error

  [evaluator] = _make({"val": section}, {"loss": predict})
  with pytest.raises(ValueError, match=f"^config.evals.val: {said}"):
    evaluator.check({"params": ()})


def test_texts_of_another_vocabulary(section, save):
  [scheduled] = _make(
    {
      "val": {
        **section,
        "data": save(text=np.array(["a"])),
        "pp_fn": "tokenize(3)",
      }
    }
  )
  bytes_ = ops_text.Vocabulary(260, "", "bytes")
  assert scheduled.evaluator.vocabularies == {"text": bytes_}
  scheduled.check_vocabularies({"text": bytes_})
  other = ops_text.Vocabulary(260, "0f", "x.model")
  with pytest.raises(ValueError, match=r"vocabulary 'bytes' .* \['x.model'\]"):
    scheduled.check_vocabularies({"text": other})


def test_missing_arguments_are_named(section):
  del section["data"]
  message = r"evals.val: data is missing; dpn.evaluators.mean needs it"
  with pytest.raises(ValueError, match=message):
    _make({"val": section})


OWN = """
import dataclasses
import numpy as np
from dpn.evaluators import base

@dataclasses.dataclass
class Evaluator(base.Evaluator):
  _: dataclasses.KW_ONLY
  data: dict
  scale: float = 1.0

  def run(self, variables):
    largest = -np.inf
    for batch in self.batches(self.open(self.data, "")):
      x = self.predict_fn(variables, batch)[0][batch["_mask"]]
      largest = max(largest, x.max())
    return {"max": self.scale * largest}
"""


def test_an_evaluator_of_ones_own(section, tmp_path, monkeypatch):
  (tmp_path / "mypkg_evals").mkdir()
  (tmp_path / "mypkg_evals" / "largest.py").write_text(OWN)
  monkeypatch.syspath_prepend(tmp_path)
  del section["pp_fn"]
  section |= {"type": "mypkg_evals.largest:Evaluator", "scale": 2.0}
  _make({"val": section})
  section["type"] = "mypkg_evals.largest"  # as in big_vision
  [evaluator] = _make({"val": section})
  evaluator.check({"params": jnp.float32(10)})
  assert evaluator.run({"params": jnp.float32(10)}) == {"val/max": 60.0}
  with pytest.raises(ValueError, match=r"Unknown key 'scala'.*mean 'scale'"):
    _make({"val": {**section, "scala": 2.0}})
  with pytest.raises(ValueError, match=r"no module 'mypkg_evals.no'"):
    _make({"val": {**section, "type": "mypkg_evals.no"}})


@pytest.mark.parametrize(
  ("old", "new"),
  [("@dataclasses.dataclass\n", ""), ("(base.Evaluator)", "")],
)
def test_an_evaluator_that_is_none(section, tmp_path, monkeypatch, old, new):
  assert old in OWN
  (tmp_path / tmp_path.name).mkdir()
  (tmp_path / tmp_path.name / "none.py").write_text(OWN.replace(old, new))
  monkeypatch.syspath_prepend(tmp_path)
  with pytest.raises(ValueError, match=r"none:Evaluator must derive"):
    _make({"val": {**section, "type": f"{tmp_path.name}.none"}})


def test_big_visions_keys(section):
  power = lambda variables, batch, *, exponent: {"x": batch["x"] ** exponent}
  del section["type"]
  section |= {"prefix": "z/", "pred": "power", "pred_kw": {"exponent": 2}}
  section["cache"] = "final_data"
  make = lambda **changes: _make({"mean": section | changes}, {"power": power})
  [evaluator] = make()
  assert evaluator.evaluator.cache_final
  assert not evaluator.first
  assert evaluator.run({"params": ()}) == {"z/x": pytest.approx(14 / 3)}
  assert make(skip_first=False)[0].first
  with pytest.raises(ValueError, match=r"option 'exponant'.*mean 'exponent'"):
    make(pred_kw={"exponant": 2})
  with pytest.raises(ValueError, match="prefix must be of type str, got None"):
    make(prefix=None)


def test_keys_without_effect_are_logged(section, caplog):
  section |= {"cache": "raw_data", "cache_raw": True}
  section |= {"skip_first": False}
  [evaluator] = _make({"mean": section})
  assert not evaluator.evaluator.cache_final
  assert evaluator.first
  assert "cache='raw_data' of evaluator dpn.evaluators.mean is" in caplog.text
  assert "cache_raw=True of evaluator dpn.evaluators.mean is" in caplog.text
