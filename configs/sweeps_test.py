"""The ablations' arms: all there, distinct, and each a model that can be."""

import pytest

import dpn.tasks
from configs import cifar10, ln_placement, stem_ablation


@pytest.mark.parametrize(
  ("module", "arms"), [(ln_placement, 22), (stem_ablation, 8)]
)
def test_arms(module, arms):
  assert len(module.sweep()) == 5 * arms * 3
  assert len(module.sweep("variants=S/16+B/32,seeds=2")) == 2 * arms * 2
  sweep = module.sweep("variants=S/16,seeds=1")
  models = set()
  for arm in sweep:
    config = module.get_config(arm["arg"])
    assert config.seed == arm["seed"]
    models.add(str(dpn.tasks.make(config).model))
  assert len(models) == len({arm["name"] for arm in sweep}) == arms


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
  with pytest.raises(ValueError, match="leave out sa, mlp, post"):
    ln_placement.get_config("block=sub_ln,sa=post")
  with pytest.raises(ValueError, match="head_scale=none needs the block"):
    ln_placement.get_config("block=sub_ln,head_scale=none")
  assert len(ln_placement.sweep("variants=S/16,readings=first,seeds=1")) == 12
  model = ln_placement.get_config("block=sub_ln,mlp_ln=before_act").model
  assert model.block_ln_kw.to_dict() == {"mlp_ln": "before_act"}


def test_cifar10():
  config = cifar10.get_config(
    "variant=cvt-7/4,posemb_join=lape,norm=dtn,norm_kw.pos_init=released"
  )
  model = dpn.tasks.make(config).model.config
  assert (model.posemb_join, model.norm) == ("lape", "dtn")
  assert (model.pool_type, model.block_ln) == ("seq", "cct")
  assert model.norm_kw == {"pos_init": "released"}
  assert "on=0.91, off=0.01" in config.input.pp
  assert config.wd == pytest.approx(3.3e-5)
