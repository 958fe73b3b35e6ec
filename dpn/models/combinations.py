"""Which options of a model exclude each other."""

from dpn.models import norms, placement, posemb, posemb_join, stem
from dpn.models.norms import dtn


def check(model):
  """Raises ValueError if `model` has options that cannot work together."""
  lape = isinstance(posemb_join.get(model.posemb_join), posemb_join.Lape)
  relative = posemb.is_relative(model.posemb)
  if stem.get_norms(model.stem_ln).ln1_after_posemb and (lape or relative):
    option = f"posemb_join={model.posemb_join!r}" if lape else "posemb='rpe'"
    raise ValueError(
      f"stem_ln={model.stem_ln!r} normalizes the sum of tokens and positions, "
      f"which {option} never forms. Use stem_ln='post'."
    )
  if model.conv_stem and stem.get_norms(model.stem_ln).ln0:
    raise ValueError(
      f"stem_ln={model.stem_ln!r} normalizes flattened patches, but a "
      "convolutional stem (variant 'cct-…') has none. Use stem_ln='post', or "
      "a variant with patches such as 'cvt-7/4'."
    )
  if lape and "pre" not in placement.get(model.block_ln).sa.split("+"):
    raise ValueError(
      "posemb_join='lape' adds positions to the normalized tokens that the "
      f"attention sees, but block_ln={model.block_ln!r} does not normalize "
      "there. Use sa=pre or sa=pre+post."
    )
  if norms.joins_late(model.norm):
    _check_late(model, lape)


def _check_late(model, lape):
  """Checks what a class token that joins late cannot be combined with."""
  what = f"norm={model.norm!r}: a class token that joins the patches late"
  if model.pool_type != "tok":
    raise ValueError(
      f"{what} needs pool_type='tok', got {model.pool_type!r}. Leave cls=late "
      "out: no other pool_type has a class token."
    )
  if model.depth <= dtn.LATE_BLOCKS:
    raise ValueError(
      f"{what} needs more than {dtn.LATE_BLOCKS} blocks, got "
      f"depth={model.depth}. Use cls=intra."
    )
  if model.scan:
    raise ValueError(
      f"{what} makes two kinds of blocks, which cannot be scanned. Use "
      "scan=False or cls=intra."
    )
  if lape or posemb_join.get(model.posemb_join).cls_row:
    raise ValueError(
      f"{what} has no position, but posemb_join={model.posemb_join!r} gives "
      "it one. Use posemb_join='add' or cls=intra."
    )
