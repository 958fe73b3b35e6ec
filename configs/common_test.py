"""Arguments of configs, and presets as the paper's Appendix C has them."""

import ml_collections
import pytest

from dpn.configs import augreg_i1k, common

SPEC = {"variant": "B/16", "runlocal": False, "res": 224, "lr": 0.1, "aug": ""}


@pytest.mark.parametrize(
  ("arg", "changes"),
  [
    (None, {}),
    ("", {}),
    ("S/32", {"variant": "S/32"}),
    ("variant=S/32", {"variant": "S/32"}),
    ("runlocal", {"runlocal": True}),
    ("variant=S/32,runlocal", {"variant": "S/32", "runlocal": True}),
    ("runlocal=False,res=384", {"res": 384}),
    ("runlocal=1,lr=3e-4", {"runlocal": True, "lr": 3e-4}),
    ("aug=none,aug=light1", {"aug": "light1"}),
    ("res=384,", {"res": 384}),
  ],
)
def test_arguments(arg, changes):
  parsed = common.parse_arg(arg, **SPEC)
  assert parsed.to_dict() == SPEC | changes
  assert isinstance(parsed.lr, float)
  assert isinstance(parsed.runlocal, bool)


def test_zero_and_one_are_numbers_and_not_booleans():
  parsed = common.parse_arg("seed=3,n=2", seed=0, n=1)
  assert (parsed.seed, parsed.n) == (3, 2)


def test_arguments_with_a_converter():
  spec = {"sizes": ((1, 2), lambda text: tuple(map(int, text.split("+"))))}
  assert common.parse_arg(None, **spec).sizes == (1, 2)
  assert common.parse_arg("sizes=3+4+5", **spec).sizes == (3, 4, 5)


@pytest.mark.parametrize(
  ("arg", "message"),
  [
    ("varaint=S/32", "Unknown config argument 'varaint'. Did you mean 'varia"),
    ("res=384,runlocl", "Unknown config argument 'runlocl'.*'runlocal'"),
    ("res=big", "Config argument res='big': expected something like 224"),
    ("lr=", "Config argument lr='': expected something like 0.1"),
    ("runlocal=maybe", "runlocal='maybe': expected something like False"),
  ],
)
def test_wrong_arguments(arg, message):
  with pytest.raises(ValueError, match=message):
    common.parse_arg(arg, **SPEC)


# Appendix C: augmentation, mixup's p.
SETTINGS = {
  "none": ("", 0.0),
  "light1": ("randaug(2,0)", 0.0),
  "light2": ("randaug(2,10)", 0.2),
  "medium1": ("randaug(2,15)", 0.2),
  "medium2": ("randaug(2,15)", 0.5),
  "strong1": ("randaug(2,20)", 0.5),
  "strong2": ("randaug(2,20)", 0.8),
}


def test_presets():
  assert {k: v[0] for k, v in SETTINGS.items()} == common.RANDAUG_DEF
  assert {
    k: {"p": v[1], "fold_in": None} for k, v in SETTINGS.items()
  } == common.MIXUP_DEF


# Appendix C: setting, rep_size, dropout and stochastic depth by variant.
@pytest.mark.parametrize(
  ("variant", "aug", "rep_size", "rate"),
  [
    ("Ti/16", "light1", True, 0.0),
    ("S/32", "medium1", False, 0.0),
    ("S/16", "medium2", True, 0.0),
    ("B/32", "medium2", True, 0.1),
    ("B/16", "medium2", True, 0.1),
    ("L/16", "medium2", True, 0.1),
  ],
)
def test_augreg_by_variant(variant, aug, rep_size, rate):
  config = augreg_i1k.get_config(f"variant={variant}")
  assert config.model.to_dict() == common.MODEL_KW | {
    "variant": variant,
    "rep_size": rep_size,
    "pool_type": "tok",
    "stem_ln": "dpn",
    "dropout": rate,
    "stoch_depth": rate,
  }
  randaug, p = SETTINGS[aug]
  assert f"|flip_lr|{randaug}|value_range(-1, 1)|" in config.input.pp
  assert config.mixup.p == p


def test_augreg_with_other_augmentation():
  config = augreg_i1k.get_config("variant=B/16,aug=none,stem_ln=none")
  assert "|flip_lr||value_range" in config.input.pp
  assert config.mixup.p == 0
  assert config.model.stem_ln == "none"
  with pytest.raises(ValueError, match=r"Unknown aug 'lite1'.*mean 'light1'"):
    augreg_i1k.get_config("aug=lite1")
  with pytest.raises(ValueError, match=r"Unknown variant 'B/8'.*Known: B/16"):
    augreg_i1k.get_config("variant=B/8")


def test_fewshot():
  config = common.get_fewshot_lsr(shots=(5,), log_steps=7)
  assert config.shots == (5,)
  assert config.l2_reg == 1024
  assert (config.num_seeds, config.log_steps) == (3, 7)
  assert len(config.datasets) == 6
  assert config.pp_eval == (
    "decode|resize(256)|central_crop(224)|value_range(-1,1)"
    '|keep("image", "label")'
  )
  assert common.get_fewshot_lsr().log_steps == 25_000
  assert "log_steps" not in common.get_fewshot_lsr(log_percent=0.5)
  assert set(common.get_fewshot_lsr(runlocal=True).datasets) == {"pets"}


def test_imagenet_fewshot():
  config = common.imagenet_fewshot(384)
  assert config.shots == (25,)
  assert config.datasets.to_dict() == {
    "imagenet": ("imagenet2012", "train[:65000]", "validation")
  }
  assert config.pp_train.startswith("decode|resize(438)|central_crop(384)|")


def test_runlocal_shrinks_everything():
  config = ml_collections.ConfigDict(
    {
      "total_epochs": 300,
      "log_training_steps": 50,
      "input": {"batch_size": 4096, "data": {"split": "train[:99%]"}},
      "schedule": {"warmup_steps": 10_000, "decay_type": "cosine"},
      "evals": {
        "val": {"data": {"split": "train[99%:]"}, "log_epochs": 1},
        "probe": {"datasets": {"a": ("name", "train[:65000]", "test")}},
      },
    }
  )
  common.runlocal(config)
  assert config.to_dict() == {
    "total_steps": 2,
    "log_training_steps": 1,
    "input": {"batch_size": 8, "data": {"split": "train[:99%]"}},
    "schedule": {"warmup_steps": 1, "decay_type": "cosine"},
    "evals": {
      "val": {"data": {"split": "train[:8]"}, "log_steps": 2},
      "probe": {
        "datasets": {"a": ("name", "train[:8]", "test[:8]")},
        "log_steps": 2,
      },
    },
  }
