r"""Where LayerNorms belong in the block, on ImageNet-1k with AugReg's recipe.

Figure 1 of arXiv 2302.01327 (Dual PatchNorm): nine placements, NormFormer,
Sub-LN and Dual PatchNorm on five models.

  python -m trainers.train --workdir W \
    --config configs/ln_placement.py:sa=post,mlp=pre+post,variant=S/16
  python -m scripts.sweep --config configs/ln_placement.py --out runs/figure1

Arguments: variant (S/16, B/16, B/32, Ti/16, S/32); sa and mlp (pre, post,
pre+post) with post (branch, stream); or block (normformer with head_scale:
heads, none, out; sub_ln with mlp_ln: after_act, before_act); or dpn; seed;
runlocal (two steps of 8 images). As a sweep: variants, seeds (3, the paper's
least on ImageNet-1k), readings (all, or first for the defaults below alone).

Expected: only dpn gains over sa=pre,mlp=pre on all five models; the figure is
not tabulated. Cost: as configs/augreg_i1k.py, so 106 hours at 1,000 images per
second, for each of 60 arms of first readings, 110 of all, and each seed.

Section 4.1 can be read in two ways at three points. The first is the default:

- post=branch, x + LN(f(x)), or stream, LN(x + f(x)). The section puts LayerNorm
  before, after, or before and after a layer. For branch: LayerNorm after the
  layer, not after the sum, mirrors "before", lets pre+post be both at once, and
  is what the section says of NormFormer's LayerNorm after the attention's
  projection. For stream: it cites Xiong et al., whose post-LN that is.
- normformer with a learned scale for each head, or head_scale=none. The section
  names two LayerNorms and no scale, but it compares with a published method,
  of which the scale is a part. (`out` applies it where the method's code does.)
- sub_ln with mlp_ln=after_act, or before_act. The section has it before the
  non-linearity; the method it cites, and that method's code, right before the
  second dense layer and so after the non-linearity. By the same argument the
  published method is the default; both readings have its initialization.
"""

from dpn.configs import augreg_i1k, common

VARIANTS = ("S/16", "B/16", "B/32", "Ti/16", "S/32")
PLACEMENTS = {
  f"sa_{sa}_mlp_{mlp}": {"sa": sa, "mlp": mlp}
  for sa in ("pre", "post", "pre+post")
  for mlp in ("pre", "post", "pre+post")
}
BLOCKS = {block: {"block": block} for block in ("normformer", "sub_ln")}
# The other readings: of the placements, and of the blocks by their OPTIONS.
STREAMS = {
  f"{name}_stream": {**given, "post": "stream"}
  for name, given in PLACEMENTS.items()
  if name != "sa_pre_mlp_pre"
}
OTHERS = {
  "normformer_no_head_scale": {"block": "normformer", "head_scale": "none"},
  "sub_ln_before_act": {"block": "sub_ln", "mlp_ln": "before_act"},
}
OPTIONS = {"normformer": "head_scale", "sub_ln": "mlp_ln"}
DEFAULTS = {"head_scale": "heads", "mlp_ln": "after_act"}


@common.recipe(
  variant="B/16",
  sa="pre",
  mlp="pre",
  post="branch",
  block="",
  **DEFAULTS,
  dpn=False,
)
def get_config(arg):
  own = OPTIONS.get(arg.block)
  for option, default in DEFAULTS.items():
    if option != own and arg[option] != default:
      raise ValueError(f"{option}={arg[option]} needs the block that has it.")
  config = augreg_i1k.get_config(
    variant=arg.variant, stem_ln="dpn" if arg.dpn else "none"
  )
  placed = arg.sa, arg.mlp, arg.post, arg.block
  arm = common.place_norms(config.model, *placed)
  if own and arg[own] != DEFAULTS[own]:
    config.model.block_ln_kw = {own: arg[own]}
    arm = f"{arm},{own}={arg[own]}"
  if arm:
    config.table.arm = f"{arm},dpn" if arg.dpn else arm
  return config


def sweep(arg=None):
  """Returns the arms of Figure 1; see the module's docstring."""
  arg = common.parse_sweep(arg, variants=VARIANTS, seeds=3, readings="all")
  readings = {"all": STREAMS | OTHERS, "first": {}}
  others = common.choose("readings", arg.readings, readings)
  arms = PLACEMENTS | BLOCKS | {"dpn": {"dpn": True}} | others
  return common.grid(arg, "{arm}_{variant}", variants=arg.variants, arms=arms)
