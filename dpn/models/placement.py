"""Where an encoder block normalizes (arXiv 2302.01327, Section 4.1, Figure 1).

Where a source can be read in two ways, both readings are options and the first
one listed is the default.
"""

import dataclasses
import math
from typing import Literal

Where = Literal["pre", "post", "pre+post"]
HeadScale = Literal["heads", "out", "none"]
MlpNorm = Literal["after_act", "before_act"]


@dataclasses.dataclass(frozen=True)
class Placement:
  """The normalizers of one block.

  Attributes:
    sa, mlp: `pre`, `post`, `pre+post` or `none`, around each sublayer f.
    post: what the normalizer after f is applied to. `branch`: x + LN(f(x));
      `stream`: LN(x + f(x)), as in the original Transformer.
    sa_inner: normalize the concatenated heads before their projection.
    prefix_qkv: class token and registers have queries, keys and values of
      their own projections.
    mlp_inner: normalize the hidden layer of the MLP, `before_act` or
      `after_act`; or `none`.
    head_scale: one learned scalar per head, on the `heads` before they are
      concatenated or on the channels of their projection, `out`; or `none`.
    resid_scale: one learned scalar per channel on the MLP's residual.
    depth_scaled_init: multiply the initial weights by `init_gain`.
  """

  sa: str = "pre"
  mlp: str = "pre"
  post: str = "branch"
  sa_inner: bool = False
  prefix_qkv: bool = False
  mlp_inner: str = "none"
  head_scale: str = "none"
  resid_scale: bool = False
  depth_scaled_init: bool = False

  def init_gain(self, depth: int) -> float:
    """Returns the factor on value, out and MLP kernels at initialization.

    sqrt(ln(2 depth)) for an encoder, arXiv 2210.06423, Section 3.
    """
    return math.sqrt(math.log(2 * depth)) if self.depth_scaled_init else 1.0


def placement(
  sa: Where = "pre",
  mlp: Where = "pre",
  post: Literal["branch", "stream"] = "branch",
) -> Placement:
  """Returns one of the nine placements of arXiv 2302.01327, Section 4.1.

  `post` is how a norm after a layer is placed, where there is one.
  """
  return Placement(sa=sa, mlp=mlp, post=post)


def normformer(
  head_scale: HeadScale = "heads", resid_scale: bool = False
) -> Placement:
  """Returns NormFormer (arXiv 2110.09456, Section 2).

  `head_scale="heads"` is the paper's equation, `"out"` the authors' code.
  """
  return Placement(
    sa="pre+post",
    mlp_inner="after_act",
    head_scale=head_scale,
    resid_scale=resid_scale,
  )


def sub_ln(mlp_ln: MlpNorm = "after_act") -> Placement:
  """Returns Sub-LN, Magneto's block (arXiv 2210.06423, Section 2).

  `mlp_ln="after_act"` is the authors' code, `"before_act"` how arXiv
  2302.01327 describes it.
  """
  return Placement(sa_inner=True, mlp_inner=mlp_ln, depth_scaled_init=True)


def cct() -> Placement:
  """Returns the block of compact Transformers' code (arXiv 2104.05704).

  x = LN(x + SA(LN(x))), x = x + MLP(x).
  """
  return Placement(sa="pre+post", mlp="none", post="stream")


PLACEMENTS = {
  "placement": placement,
  "normformer": normformer,
  "sub_ln": sub_ln,
  "cct": cct,
}
