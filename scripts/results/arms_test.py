"""Arms are named after what their configs change, in any field."""

import pytest

from dpn.scripts.results import arms

PLAIN = {"model": {"variant": "S/16", "pool_type": "map"}, "lr": 0.1, "seed": 0}


def _config(model=(), **kw):
  return {**PLAIN, "model": {**PLAIN["model"], **dict(model)}, **kw}


def _name(config):
  return arms.model_name(arms.image_model(config)) or arms.BASE


@pytest.mark.parametrize(
  ("model", "name"),
  [
    ({}, "base"),
    ({"stem_ln": "none", "qk_norm": None, "stem": "patch"}, "base"),
    ({"stem_ln": "dpn"}, "dpn"),
    ({"block_ln_kw": {"sa": "post"}}, "sa=post,mlp=pre"),
    ({"stem_ln": "pre", "stem": "patch_stats"}, "pre+patch_stats"),
    ({"stem_ln": "patch_stats"}, "dpn+patch_stats"),
    ({"stem": "patch_stats"}, "none+patch_stats"),
    ({"stem_ln": "none", "stem": "tract"}, "tract"),
    ({"qk_norm": "layernorm"}, "qk_norm=layernorm"),
    (
      {"stem_ln": "dpn", "qk_norm": "rmsnorm", "qk_norm_kw": {"eps": 0.1}},
      "dpn+qk_norm=rmsnorm+qk_norm_kw.eps=0.1",
    ),
    ({"norm": "mine.norms:New", "norm_kw": {"p": 2}}, "mine.norms:New,p=2"),
    ({"norm_kw": {"eps": 1e-5}}, "base"),
  ],
)
def test_options_that_no_recipe_sets_name_an_arm_by_themselves(model, name):
  assert _name(_config(model)) == name
  assert _name({"model": {"image": model, "text": {"width": 8}}}) == name


@pytest.mark.parametrize(
  ("config", "name"),
  [
    (_config(seed=3, log_training_steps=5, table={"arm": "x"}), "base"),
    (_config(workdir="b", evals={"val": {}}, mesh={"data": 2}), "base"),
    (_config(lr=0.2), "lr=0.2"),
    (_config({"stem_ln": "dpn"}, lr=0.2), "dpn+lr=0.2"),
    (_config({"pool_type": "gap"}), "pool_type=gap"),
    (_config(mixup={"p": 0.2}, grad_clip_norm=None), "mixup.p=0.2"),
    (_config({"frobnicate": True}), "frobnicate=true"),
  ],
)
def test_beside_a_base_every_field_counts(config, name):
  table = arms.told_apart({"plain": PLAIN, "config": config})
  assert arms.extended(_name(config), table.iloc[1], table.iloc[0]) == name


def test_names_are_told_apart_within_a_row():
  def named(*configs, **kw):
    return arms.within_row(configs, [_name(c) for c in configs], **kw)

  words = {"stem_ln": "patch_stats"}, {"stem_ln": "dpn", "stem": "patch_stats"}
  assert arms.fields(map(_config, words)).nunique().max() == 1
  dpn = _config({"stem_ln": "dpn"}, lr=0.5)
  mixed = _config(mixup={"p": 0.2})
  pp = ["flip|a(1)"] * 4 + ["flip|b(1)", "b(1)|a(1)", "b(1)"]
  found = ["a(1)->b(1)", "flip->b(1)", "b(1)"]
  found = ["base"] * 4 + [f"input.pp={change}" for change in found]
  assert named(*(_config(input={"pp": ops}) for ops in pp)) == found
  assert named(PLAIN, mixed, dpn) == ["base", "mixup.p=0.2", "dpn"]
  # As most have it; of two alike there is no plain one.
  other = _config(lr=0.2)
  assert named(PLAIN, PLAIN, other) == ["base", "base", "lr=0.2"]
  assert named(PLAIN, other) == ["base", "base"]
  rates = [_config(lr=lr, wd=0.1 * lr) for lr in (0.1, 0.1, 0.3)]
  assert named(*rates) == ["base", "base", "lr=0.3"]
  rates[2] = _config(lr=0.3, wd=0.1)
  assert named(*rates)[2] == "lr=0.3+wd=0.1"
  assert named(PLAIN, other, no_plain=True) == ["lr=0.1", "lr=0.2"]
  # Results on other data, or of wholly other settings, are a mistake.
  data = _config(input={"data": {"name": "cats"}})
  assert named(PLAIN, PLAIN, data) == ["base"] * 3
  far = _config(a=1, b=2, c=3, d=4)
  assert named(PLAIN, PLAIN, far) == ["base"] * 3
