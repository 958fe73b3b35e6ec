"""The sweeps of ablations, and what their configs take from the papers."""

import json
import math
import re

import pytest

import dpn.tasks
from dpn import schedules
from dpn.configs import (
  ade20k,
  dtn_i1k,
  lape_cifar,
  lape_deit,
  ln_placement,
  stem_ablation,
  sun397_scratch,
)
from dpn.configs.studies import photos


# That each arm has a cell of its own in its table: scripts/tables_test.py.
@pytest.mark.parametrize(
  ("module", "arms"), [(ln_placement, 22), (stem_ablation, 10)]
)
def test_arms(module, arms):
  assert len(module.sweep()) == 5 * arms * 3
  assert len(module.sweep("variants=S/16+B/32,seeds=2")) == 2 * arms * 2
  assert len({a["name"] for a in module.sweep("variants=S/16")}) == arms


def test_fractions_of_ade20k():
  sweep = ade20k.sweep()
  assert len(sweep) == len({(a["name"], a["seed"]) for a in sweep}) == 100
  configs = [ade20k.get_config(arm["arg"]) for arm in sweep]
  assert {config.total_steps for config in configs} == {161_664}
  assert {c.model_init for c in configs} == {
    f"runs/table1/{stem}_B16-s0/params.safetensors" for stem in ("none", "dpn")
  }
  splits = {c.table.train_fraction: c.input.data.split for c in configs}
  assert splits["1"] == "train"
  for fraction in ("1/16", "1/8", "1/4", "1/2"):
    percent = splits[fraction].removeprefix("train[:").removesuffix("%]")
    assert float(percent) / 100 == 1 / int(fraction[2:])
  drawn = ade20k.get_config("init=x,fraction=1/2,draw=seed,seed=7")
  assert drawn.input.data.subset_seed == 7
  whole = ade20k.get_config("init=x")
  assert whole.evals.val.stride == (341, 341)
  assert len(ade20k.get_config("init=x,eval=multi").evals.val.pp_scales) == 5


def test_placements():
  model = ln_placement.get_config("sa=post,mlp=pre+post,post=stream").model
  assert model.stem_ln == "none"
  assert model.block_ln_kw.to_dict() == {
    "sa": "post",
    "mlp": "pre+post",
    "post": "stream",
  }
  assert ln_placement.get_config("block=sub_ln").model.block_ln == "sub_ln"
  assert ln_placement.get_config("dpn").model.stem_ln == "dpn"
  assert len(ln_placement.sweep("variants=S/16,readings=first,seeds=1")) == 12
  model = ln_placement.get_config("block=sub_ln,mlp_ln=before_act").model
  assert model.block_ln_kw.to_dict() == {"mlp_ln": "before_act"}


def test_stages_of_sun397(tmp_path):
  stages = {"search": 3 * 2 * 2, "augment": 3 * 4, "longer": 1}
  settings = ("from scratch", "+ augmentation", "+ train longer (600 epochs)")
  go_on = ""
  for (stage, count), setting in zip(stages.items(), settings, strict=True):
    arms = sun397_scratch.sweep(f"stage={stage}{go_on}")
    assert len(arms) == len({arm["name"] for arm in arms}) == 4 * count
    cells = {}
    for arm in arms:
      config = sun397_scratch.get_config(arm["arg"])
      assert config.table.setting == setting
      assert config.table.candidate == arm["candidate"]
      cells[arm["cell"]] = {"candidate": arm["candidate"]}  # the last is best
    (tmp_path / "selection.json").write_text(json.dumps({"cells": cells}))
    go_on = f",from={tmp_path}"
  # The last of each grid, of which stage 3 knows by stage 2 alone.
  want = "lr=0.0001,wd=0.1,dropout=0.1,mixup=0.5,randaug=15"
  assert {arm["candidate"] for arm in arms} == {want}
  [first] = sun397_scratch.sweep("stage=augment,variants=B/16,stems=dpn")[:1]
  assert (
    "flip_lr|randaug(2,0)|" in sun397_scratch.get_config(first["arg"]).input.pp
  )
  assert "randaug" not in sun397_scratch.get_config().input.pp
  for arg, message in (
    (f"stage=augment{go_on}", "no 'search B/32 none', which this goes on from"),
    (
      "lr=5e-4,from=x",
      "search has no use for lr, from: .* goes on from nothin",
    ),
  ):
    with pytest.raises(ValueError, match=message):
      sun397_scratch.sweep(arg)


def test_lape_cifar():
  config = lape_cifar.get_config(
    "variant=cvt-7/4,posemb_join=lape,norm=dtn,norm_kw.pos_init=released"
  )
  model = dpn.tasks.make(config).model.config
  assert (model.posemb_join, model.norm) == ("lape", "dtn")
  assert (model.pool_type, model.block_ln) == ("seq", "cct")
  assert model.norm_kw == {"pos_init": "released"}
  assert "on=0.91, off=0.01" in config.input.pp
  assert config.wd == pytest.approx(3.3e-5)
  assert config.mixup.until_steps == 68_359  # 175 epochs of 390.625 batches
  hundred = lape_cifar.get_config("data=cifar100")
  assert hundred.num_classes == 100
  assert "onehot(100" in hundred.input.pp
  assert "until_steps" not in hundred.mixup
  # Epochs 0, 5, 10, 150, 300 and the last: towards lr and on to 1e-5.
  for made, start, lr in ((config, 1e-5, 5.5e-4), (hundred, 1e-6, 6e-4)):
    fn = schedules.learning_rate(
      310 * 390, 128, 390 * 128, **made.schedule.to_dict()
    )
    cosine = lambda t, lr=lr: 1e-5 + (lr - 1e-5) * (1 + math.cos(t)) / 2
    want = {
      **{0: start, 389: start, 5 * 390: (start + lr) / 2},
      **{10 * 390: cosine(math.pi / 30), 151 * 390 - 1: cosine(math.pi / 2)},
      **{300 * 390: 1e-5, 310 * 390 - 1: 1e-5},
    }
    got = {step: float(fn(step)) * made.lr for step in want}
    assert got == pytest.approx(want, rel=1e-4)
  arms = lape_cifar.sweep("data=cifar100,variants=lite-7/4")
  assert [arm["seed"] for arm in arms] == 2 * [121, 122, 123, 124, 125]
  table = lape_cifar.get_config(arms[-1]["arg"]).table
  assert (table.data, table.epochs) == ("CIFAR-100", 300)


def test_lape_deit():
  config = lape_deit.get_config("posemb_join=unshared,variant=Ti/16")
  assert config.input.data.split == "train"
  assert "resize_small(224" in config.evals.val.pp_fn
  assert set(config.evals) == {"train", "val"}
  # An evaluation at epoch 100 of ImageNet's 1,281,167 images.
  every = schedules.steps(
    "log", config.evals.val, batch_size=1024, data_size=1_281_167
  )
  assert 125_113 <= 5 * every <= 125_115
  decayed = re.compile(config.wd_mults[0][0]).fullmatch
  assert decayed("Transformer/encoderblock_0/pos_embedding")
  assert not decayed("pos_embedding")
  assert "wd_mults" not in lape_deit.get_config("posemb_join=shared")
  config = lape_deit.get_config("posemb=rpe")
  decayed = re.compile(config.wd_mults[0][0]).fullmatch
  assert decayed("Transformer/encoderblock/rel_posemb/table")
  add = lape_deit.get_config("posemb_join=add")
  assert add.model.posemb_join_kw.to_dict() == {"cls": True}


def test_dtn():
  config = dtn_i1k.get_config("variant=S_star,norm=dtn")
  model = dpn.tasks.make(config).model.config
  sizes = (model.width, model.mlp_dim, model.num_heads, model.cls_blocks)
  assert sizes == (432, 1728, 9, 2)
  assert not model.qkv_bias
  assert model.has_cls
  assert model.eps == 1e-5
  plain = dpn.tasks.make(dtn_i1k.get_config("norm=layernorm")).model.config
  assert plain.eps == 1e-5
  assert config.ema_decay == 0.99996
  assert "mixup" not in config
  assert "random_erasing" not in config.input.pp
  deit = dtn_i1k.get_config("recipe=deit")
  assert deit.mixup.cutmix_p == 1.0
  assert "random_erasing(0.25)|onehot" in deit.input.pp


def test_rates_have_one_origin():
  for rest in ("piece=rates,from=/x", "piece=confirm,from=/x,lrs=1e-3"):
    with pytest.raises(ValueError, match="from has the rates; leave out lrs"):
      photos.sweep(rest)
