r"""Where LayerNorms belong in the block, on ImageNet-1k with AugReg's recipe.

Figure 1 of arXiv 2302.01327 (Dual PatchNorm): nine placements, NormFormer,
Sub-LN and Dual PatchNorm on five models.

  python -m trainers.train --workdir W \
    --config configs/ln_placement.py:sa=post,mlp=pre+post,variant=S/16
  python -m scripts.sweep --config configs/ln_placement.py --out runs/figure1

Arguments: variant (S/16, B/16, B/32, Ti/16, S/32); sa and mlp (pre, post,
pre+post), or block (normformer, sub_ln), or dpn; post (branch, or stream for
LN(x + f(x))); seed; runlocal (two steps of 8 images). As a sweep: variants,
seeds (1).

Expected: only dpn gains over sa=pre,mlp=pre on all five models; the figure is
not tabulated. Cost: as configs/augreg_i1k.py, so 106 hours at 1,000 images per
second, for each of 60 arms.
"""

from configs import augreg_i1k, common

VARIANTS = ("S/16", "B/16", "B/32", "Ti/16", "S/32")
PLACEMENTS = ("pre", "post", "pre+post")
BLOCKS = ("normformer", "sub_ln")


def get_config(arg=None):
  """Returns the config; see the module's docstring for `arg`."""
  arg = common.parse_arg(
    arg,
    variant="B/16",
    sa="pre",
    mlp="pre",
    post="branch",
    block="",
    dpn=False,
    seed=0,
    runlocal=False,
  )
  if arg.block and (arg.sa, arg.mlp, arg.post) != ("pre", "pre", "branch"):
    raise ValueError(
      f"block={arg.block} has placements of its own: leave out sa, mlp, post."
    )
  stem_ln = "dpn" if arg.dpn else "none"
  config = augreg_i1k.get_config(
    f"variant={arg.variant},stem_ln={stem_ln},seed={arg.seed},"
    f"runlocal={arg.runlocal}"
  )
  arm = arg.block or common.place_norms(config.model, arg.sa, arg.mlp, arg.post)
  if arg.block:
    config.model.block_ln = arg.block
  if arm:
    config.table.arm = f"{arm},dpn" if arg.dpn else arm
  return config


def sweep(arg=None):
  """Returns the arms of Figure 1; see the module's docstring."""
  arg = common.parse_sweep(arg, variants=VARIANTS)
  blocks = {
    f"sa_{sa}_mlp_{mlp}": {"sa": sa, "mlp": mlp}
    for sa in PLACEMENTS
    for mlp in PLACEMENTS
  }
  blocks |= {block: {"block": block} for block in BLOCKS}
  blocks |= {"dpn": {"dpn": True}}
  return [
    arm
    for variant in arg.variants
    for name, given in blocks.items()
    for arm in common.arms(arg, f"{name}_{variant}", variant=variant, **given)
  ]
