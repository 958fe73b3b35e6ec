"""Where an encoder block normalizes (arXiv 2302.01327, Section 4.1, Figure 1).

Where a source can be read in two ways, both readings are options and the first
one listed is the default.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

# Functions whose placement differs between blocks return a rule: (i, depth) →
# the placement of block i, counted from 0.
Rule = Callable[[int, int], "Placement"]
Where = Literal["pre", "post", "pre+post"]
HeadScale = Literal["heads", "out", "none"]
MlpNorm = Literal["after_act", "before_act"]


@dataclasses.dataclass(frozen=True)
class Placement:
  """The normalizers of one block.

  Attributes:
    sa, mlp: norms around each sublayer f: `pre`, `post`, `pre+post` or `none`.
    post: what the normalizer after f is applied to. `branch`: x + LN(f(x));
      `stream`: LN(x + f(x)), as in the original Transformer.
    sa_inner: normalize the concatenated heads before their projection.
    prefix_qkv: project class token and registers to queries, keys and values
      with kernels of their own.
    mlp_inner: normalize the hidden layer of the MLP, `before_act` or
      `after_act`; or `none`.
    head_scale: one learned scalar per head, on the `heads` before they are
      concatenated or on the channels of their projection, `out`; or `none`.
    resid_scale: one learned scalar per channel on the MLP's residual.
    pre_gain: factor on the output of the normalizers before f.
    stream_gain: a in LN(a x + f(x)), with `post="stream"`.
    post_scale_init: initial value of the scales of normalizers after f.
    weight_gain: factor on the initial kernels of value, out and MLP.
  """

  sa: str = "pre"
  mlp: str = "pre"
  post: str = "branch"
  sa_inner: bool = False
  prefix_qkv: bool = False
  mlp_inner: str = "none"
  head_scale: str = "none"
  resid_scale: bool = False
  pre_gain: float = 1.0
  stream_gain: float = 1.0
  post_scale_init: float = 1.0
  weight_gain: float = 1.0


def placement(
  sa: Where = "pre",
  mlp: Where = "pre",
  post: Literal["branch", "stream"] = "branch",
) -> Placement:
  """Returns one of the nine placements of arXiv 2302.01327, Section 4.1.

  `post` is what a norm after a sublayer is applied to.

  Raises:
    ValueError: post="stream", and no sublayer has a norm after it.
  """
  if post == "stream" and "post" not in sa + mlp:
    raise ValueError(
      f"post='stream' without a norm after a sublayer; got sa={sa!r} and "
      f"mlp={mlp!r}, expected sa='post' or mlp='post'."
    )
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


def sub_ln(mlp_ln: MlpNorm = "after_act") -> Rule:
  """Returns Sub-LN, Magneto's block (arXiv 2210.06423, Section 2).

  `mlp_ln="after_act"` is the authors' code, `"before_act"` how arXiv
  2302.01327 describes it. The weights' gain is Section 3's of an encoder.
  """

  def rule(i, depth):
    gain = math.sqrt(math.log(2 * depth))
    return Placement(sa_inner=True, mlp_inner=mlp_ln, weight_gain=gain)

  return rule


def cct() -> Placement:
  """Returns the block of compact Transformers' code (arXiv 2104.05704).

  x = LN(x + SA(LN(x))), x = x + MLP(x).
  """
  return Placement(sa="pre+post", mlp="none", post="stream")


def peri_ln() -> Placement:
  """Returns Peri-LN (arXiv 2502.02732): x + LN(f(LN(x))).

  The paper also normalizes the embedded tokens: `stem_ln="post_posemb"`.
  """
  return Placement(sa="pre+post", mlp="pre+post")


def res_post(scale_init: float = 0.0) -> Placement:
  """Returns Swin V2's res-post-norm (arXiv 2111.09883): x + LN(f(x)).

  The scales start at 0, so that all blocks start as the identity. A class token
  of zeros (`pool_type="tok"`) then reaches the head as zeros. If the head's
  kernel is zero too (`head_zeroinit`), only the head's bias ever has a gradient
  other than 0: use "gap" or `head_zeroinit=False`.
  """
  return Placement(sa="post", mlp="post", post_scale_init=scale_init)


def lns() -> Rule:
  """Returns LayerNorm scaling (arXiv 2502.05795): f(LN(x) / sqrt(l)).

  l counts the blocks from 1. The released code never applies it: it compares an
  upper-case name with a lower-case one, and builds blocks without branches.
  """
  return lambda i, depth: Placement(pre_gain=(i + 1) ** -0.5)


def mix_ln(post_share: float = 0.25) -> Rule:
  """Returns Mix-LN (arXiv 2412.13795): the first blocks post-LN, others pre-LN.

  Of `depth` blocks the first floor(post_share * depth) are LN(x + f(x)). Their
  norms are `LayerNorm_0_post`, …, the others' `LayerNorm_0`, ….
  """

  def rule(i, depth):
    if i < math.floor(post_share * depth):
      return Placement(sa="post", mlp="post", post="stream")
    return Placement()

  return rule


def deepnorm() -> Rule:
  """Returns DeepNorm of an encoder (arXiv 2203.00555): LN(a x + f(x)).

  a = (2 depth)^(1/4). The value, out and MLP kernels start at (8 depth)^(-1/4)
  times Xavier's initialization, which `weight_init="big_vision"` has.
  """

  def rule(i, depth):
    where = {"sa": "post", "mlp": "post", "post": "stream"}
    gains = {"stream_gain": (2 * depth) ** 0.25}
    return Placement(**where, **gains, weight_gain=(8 * depth) ** -0.25)

  return rule


def hybridnorm(first: Literal["same", "pre", "pre_both"] = "same") -> Rule:
  """Returns HybridNorm (arXiv 2503.04598), to use with `qk_norm` and `v_norm`.

  x = x + SA(x), with normalized queries, keys and values, then n = LN(x), x =
  n + MLP(n). HybridNorm* has a different first block. In the authors' command
  it is pre-LN in both sublayers, `first="pre_both"`; with `"pre"` it differs
  from other blocks only in that its attention sees LN(x).
  """

  def rule(i, depth):
    if i == 0 and first == "pre_both":
      return Placement()
    pre = i == 0 and first == "pre"
    return Placement("pre+post" if pre else "post", "none", post="stream")

  return rule


def keel(gain: float | None = None) -> Rule:
  """Returns Keel (arXiv 2601.19895): x = LN(a x + f(LN(x))).

  a is `gain`; None means the number of sublayers, 2 depth. The first sublayer
  is x + f(LN(x)). No norm follows the last block: set `final_norm=False`.
  """

  def rule(i, depth):
    sa, a = ("pre+post" if i else "pre"), 2.0 * depth if gain is None else gain
    return Placement(sa, "pre+post", post="stream", stream_gain=a)

  return rule


def specialized_cls(share: float = 1 / 3) -> Rule:
  """Returns pre-LN whose first blocks project the class token separately.

  The first floor(share * depth) blocks have separate query, key and value
  kernels for class token and registers. The paper (arXiv 2602.08626) also
  separates the norms: `prefix_norm="own"`.
  """
  return lambda i, depth: Placement(prefix_qkv=i < math.floor(share * depth))


PLACEMENTS = {
  "placement": placement,
  "normformer": normformer,
  "sub_ln": sub_ln,
  "cct": cct,
  "peri_ln": peri_ln,
  "res_post": res_post,
  "lns": lns,
  "mix_ln": mix_ln,
  "deepnorm": deepnorm,
  "hybridnorm": hybridnorm,
  "keel": keel,
  "specialized_cls": specialized_cls,
}


def of_block(name: str, function: Callable, i: int, depth: int) -> Placement:
  """Returns the placement of block i, counted from 0, of `depth` blocks.

  Raises:
    ValueError: calling the function that `name` stands for gives no placement.
  """
  try:
    found = function()
    if callable(found):  # a rule
      found = found(i, max(depth, 1))
  except TypeError as e:
    found = e
  if not isinstance(found, Placement):
    raise ValueError(
      f"block_ln={name!r} must be a subclass of EncoderBlock, or a function "
      "that returns a Placement, or a rule for one, and can be called without "
      f"arguments; got {found!r}."
    )
  return found
