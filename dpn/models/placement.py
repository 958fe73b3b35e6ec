"""Where an encoder block normalizes (arXiv 2302.01327, Section 4.1, Figure 1).

Wherever the sources can be read in two ways, both readings are options and the
first one listed is the default.
"""

import dataclasses
import math
from typing import Literal

from dpn import errors, options

Placement = Literal["pre", "post", "pre+post"]
HeadScale = Literal["heads", "out", "none"]
MlpNorm = Literal["after_act", "before_act"]


@dataclasses.dataclass(frozen=True)
class BlockLN:
  """The normalizers of one block.

  Attributes:
    sa, mlp: `pre`, `post`, `pre+post` or `none`, around each sublayer f.
    post: what follows the normalizer after f. `branch`: x + LN(f(x)), then the
      residual sum; `stream`: LN(x + f(x)), which replaces the residual.
    sa_inner: normalize the concatenated heads before their projection.
    mlp_inner: normalize the hidden layer of the MLP, around its activation.
    head_scale: one learned scalar per head, on the `heads` before they are
      concatenated or on the channels `out` of their projection.
    resid_scale: one learned scalar per channel on the MLP's residual.
    sub_ln_init: scale the initial weights by `init_gain`.
  """

  sa: str = "pre"
  mlp: str = "pre"
  post: str = "branch"
  sa_inner: bool = False
  mlp_inner: str = "none"
  head_scale: str = "none"
  resid_scale: bool = False
  sub_ln_init: bool = False

  def init_gain(self, depth: int) -> float:
    """Returns the factor on value, out and MLP kernels at initialization.

    sqrt(ln(2 depth)) for an encoder, arXiv 2210.06423, Section 3.
    """
    return math.sqrt(math.log(2 * depth)) if self.sub_ln_init else 1.0


def placement(
  sa: Placement = "pre",
  mlp: Placement = "pre",
  post: Literal["branch", "stream"] = "branch",
) -> BlockLN:
  """Returns one of the nine placements of arXiv 2302.01327, Section 4.1."""
  return BlockLN(sa=sa, mlp=mlp, post=post)


def normformer(
  head_scale: HeadScale = "heads", resid_scale: bool = False
) -> BlockLN:
  """Returns NormFormer (arXiv 2110.09456, Section 2).

  `head_scale=heads` is the paper's equation, `out` the authors' code.
  """
  return BlockLN(
    sa="pre+post",
    mlp_inner="after_act",
    head_scale=head_scale,
    resid_scale=resid_scale,
  )


def sub_ln(mlp_ln: MlpNorm = "after_act") -> BlockLN:
  """Returns Sub-LN, that is Magneto's block (arXiv 2210.06423, Section 2).

  `mlp_ln=after_act` is the authors' code, `before_act` how arXiv 2302.01327
  describes it.
  """
  return BlockLN(sa_inner=True, mlp_inner=mlp_ln, sub_ln_init=True)


def cct() -> BlockLN:
  """Returns the block of compact Transformers' code (arXiv 2104.05704).

  x = LN(x + SA(LN(x))), x = x + MLP(x).
  """
  return BlockLN(sa="pre+post", mlp="none", post="stream")


PRESETS = {"normformer": normformer, "sub_ln": sub_ln, "cct": cct}


def get(text: str) -> BlockLN:
  """Returns what a string such as "sa=post,mlp=pre" or "sub_ln" stands for.

  Raises:
    ValueError: if it stands for nothing, naming the nearest.
  """
  name = text.partition(",")[0]
  if "=" in name:
    return options.bind(f"block_ln={text!r}", text, placement)()
  if name not in PRESETS:
    raise ValueError(
      f"{errors.unknown('block_ln', text, PRESETS)} Or placements, as in "
      "'sa=pre,mlp=pre+post': each of pre, post, pre+post."
    )
  return options.parse("block_ln", text, PRESETS)()
