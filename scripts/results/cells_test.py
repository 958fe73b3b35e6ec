"""Runs find their cell, by config.table or by ordinary fields."""

import pytest

from configs import augreg_i1k, finetune_i1k, ln_placement, stem_ablation
from scripts.results import cells, runs


def _cell(config, table=True):
  config = dict(config.to_dict() if hasattr(config, "to_dict") else config)
  if not table:
    config.pop("table", None)
  return cells.of(runs.Run("path", config, [], None))


@pytest.mark.parametrize("table", [True, False])
@pytest.mark.parametrize(
  ("config", "recipe", "arch", "arm"),
  [
    (augreg_i1k.get_config("variant=S/32"), "AugReg", "S/32", "dpn"),
    (
      augreg_i1k.get_config("variant=Ti/16,stem_ln=none"),
      "AugReg",
      "Ti/16",
      "base",
    ),
    (stem_ablation.get_config("stem_ln=rmsnorm"), "AugReg", "B/16", "rmsnorm"),
    (
      ln_placement.get_config("sa=post,mlp=pre+post"),
      "AugReg",
      "B/16",
      "sa=post,mlp=pre+post",
    ),
    (ln_placement.get_config("sa=pre,mlp=pre"), "AugReg", "B/16", "base"),
    (ln_placement.get_config("block=sub_ln"), "AugReg", "B/16", "sub_ln"),
    (
      finetune_i1k.get_config("variant=B/32,init=x.npz"),
      "AugReg+384 finetune",
      "B/32",
      "dpn",
    ),
  ],
)
def test_cells_of_the_papers_configs(config, table, recipe, arch, arm):
  cell = _cell(config, table)
  assert (cell.recipe, cell.get("arch"), cell.arm) == (recipe, arch, arm)


def test_a_model_changed_by_hand_is_believed_before_the_table():
  config = augreg_i1k.get_config("variant=S/32")
  config.model.stem_ln = "pre"
  assert _cell(config).arm == "pre"


def test_other_data_sets_have_a_recipe_of_their_own():
  model = {"width": 64, "depth": 6, "patch_size": [8, 8]}
  for name, recipe in {
    "arrays:digits": "digits",
    "folder:/data/flowers/": "flowers",
    "tfds:cifar10:3.*.*": "cifar10",
    "cifar10/small": "cifar10",
  }.items():
    cell = _cell({"model": model, "input": {"data": {"name": name}}})
    assert (cell.recipe, cell.get("arch")) == (recipe, "64×6/8")


def test_pretraining_lengths_and_settings():
  def cell(data, **kw):
    return _cell({"input": {"data": {"name": data}, "pp": ""}, **kw})

  assert cell("imagenet21k", total_epochs=300).get("steps") == "930000"
  assert cell("imagenet21k", total_steps=93000).get("steps") == "93000"
  assert cell("jft", total_steps=220000).get("steps") == "220000"
  assert cell("sun397").get("setting") == "from scratch"
  augmented = cell("sun397", mixup={"p": 0.2})
  assert augmented.get("setting") == "+ augmentation"
  longer = cell("sun397", mixup={"p": 0.2}, total_epochs=600)
  assert longer.get("setting") == "+ train longer (600 epochs)"


def test_trial_runs_fill_no_cell():
  assert _cell({"table": {"recipe": "AugReg", "runlocal": True}}) is None


def test_differences_leave_out_what_may_differ():
  def run(**kw):
    return runs.Run("path", {"lr": 1.0, "model": {"width": 8}, **kw}, [], None)

  plain = "sa=pre,mlp=pre,post=branch"
  same = [
    run(seed=0, model_init="a"),
    run(seed=1, model_init="b", log_training_steps=5),
    run(model={"width": 8, "block_ln": plain}),
  ]
  assert cells.differences(same) == {}
  assert cells.differences([*same, run(lr=2.0)]) == {
    "lr": ["1.0", "1.0", "1.0", "2.0"]
  }


def test_titles_tell_cells_apart():
  keys = (("arch", "B/16"), ("resolution", 384), ("steps", 220_000))
  cell = cells.Cell("JFT finetune", "dpn", keys)
  assert cell.title() == "JFT finetune B/16 resolution 384 steps 220000"
  cell = cells.Cell("VTAB", "base", (("arch", "B/32"), ("task", "DTD")))
  assert cell.title() == "VTAB B/32 DTD"
  assert cells.Cell("LaPE", "base", (("join", ""),)).title() == "LaPE"
