"""Arguments, grids of sweeps, and presets against the paper's Appendix C."""

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
    ("runlocal", {"runlocal": True}),
    ("variant=S/32,runlocal", {"variant": "S/32", "runlocal": True}),
    ("runlocal=False,res=1", {"res": 1}),
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


@pytest.mark.parametrize(
  ("arg", "message"),
  [
    ("varaint=S/32", "Unknown config argument 'varaint'. Did you mean 'varia"),
    ("res=384,runlocl", "Unknown config argument 'runlocl'.*'runlocal'"),
    ("res=big", "Config argument res='big': expected something like 224"),
    ("lr=", "Config argument lr='': expected something like 0.1"),
    ("kw=1", r"Config argument kw=1: expected an item of it, kw\.key=value"),
    ("lr.x=1", "Unknown config argument 'lr.x'. Did you mean 'lr'"),
    ("runlocal=maybe", "runlocal='maybe': expected something like False"),
  ],
)
def test_wrong_arguments(arg, message):
  with pytest.raises(ValueError, match=message):
    common.parse_arg(arg, **SPEC, kw={})


def test_wrong_keywords():
  with pytest.raises(ValueError, match=r"config argument 'varaint'.*'variant'"):
    augreg_i1k.get_config(varaint="S/16")


def test_grid():
  arms = common.grid(
    "seeds=2,stems=pre+dpn,runlocal",
    "{stem_ln}_{variant}_{arm}",
    stems=("none",),
    variant="B/16",
    init="runs/{stem_ln}_{variant}-s{seed}",
    data="",
    arms={"a": {"lr": 1, "wd": 2}, "b": {"lr": 3}},
    first_seed=5,
    cell="{variant} {stem_ln}",
    candidate=lambda given: f"lr={given['lr']}",
  )
  names = [f"{stem}_B16_{x}" for stem in ("pre", "dpn") for x in "ab"]
  assert [arm["name"] for arm in arms[::2]] == names
  assert [arm["seed"] for arm in arms] == [5, 6] * 4
  assert arms[1] == {
    "name": "pre_B16_a",
    "arg": "stem_ln=pre,lr=1,wd=2,variant=B/16,init=runs/pre_B16-s6,"
    "runlocal=True,seed=6",
    "seed": 6,
    "cell": "B/16 pre",
    "candidate": "lr=1",
  }


def test_arms_made_of_the_arguments():
  make = lambda arg: {s: {"stem_ln": s, "lr": 2} for s in arg.stems}
  defaults = {"stems": ("none",), "lr": 1, "seeds": 1}
  arms = common.grid("stems=pre,lr=5", "{arm}", arms=make, **defaults)
  assert [arm["arg"] for arm in arms] == ["stem_ln=pre,lr=2,seed=0"]
  parsed = common.parse_sweep("stems=pre", **defaults)
  assert common.grid(parsed, "{arm}", arms=make) == arms
  given = {"pre": {"lr": 2}}  # what the text says wins over these
  arms = common.grid("lr=5", "{arm}", arms=given, lr=1, seeds=1)
  assert [arm["arg"] for arm in arms] == ["lr=5,seed=0"]


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


def test_augreg_with_other_augmentation():
  config = augreg_i1k.get_config("variant=B/16,aug=none,stem_ln=none")
  assert "|flip_lr||value_range" in config.input.pp
  assert config.mixup.p == 0


def test_fewshot():
  config = common.get_fewshot_lsr(shots=(5,), log_steps=7)
  assert (config.shots, config.l2_reg, config.num_seeds) == ((5,), 1024, 3)
  assert (config.log_steps, len(config.datasets)) == (7, 6)
  assert config.pp_eval == (
    "decode|resize(256)|central_crop(224)|value_range(-1,1)"
    '|keep("image", "label")'
  )
  assert common.get_fewshot_lsr().log_steps == 25_000
  assert "log_steps" not in common.get_fewshot_lsr(log_percent=0.5)
  assert set(common.get_fewshot_lsr(runlocal=True).datasets) == {"pets"}
  config = common.imagenet_fewshot(384)
  assert config.shots == (25,)
  probe = {"imagenet": ("imagenet2012", "train[:65000]", "validation")}
  assert config.datasets.to_dict() == probe
  assert config.pp_train.startswith("decode|resize(438)|central_crop(384)|")


def test_runlocal_shrinks_everything():
  @common.recipe(size=1)
  def get_config(arg):
    return {
      "total_epochs": 300 * arg.size,
      "log_training_steps": 50,
      "input": {"batch_size": 4096, "data": {"split": "train[:99%]"}},
      "schedule": {"warmup_steps": 10_000, "decay_type": "cosine"},
      "evals": {
        "val": {"data": {"split": "train[99%:]"}, "log_epochs": 1},
        "probe": {"datasets": {"a": ("name", "train[:65000]", "test")}},
      },
    }

  assert isinstance(get_config(), ml_collections.ConfigDict)
  assert get_config(size=2).total_epochs == 600
  assert get_config("runlocal,seed=3").to_dict() == {
    "seed": 3,
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
