"""Where the positions of tokens join them."""

import dataclasses
from typing import ClassVar, Literal

from dpn import options
from dpn.models import norms


@dataclasses.dataclass(frozen=True)
class Add:
  """Position added to the tokens once, before the first block.

  Attributes:
    cls_row: the class token has a position too, as in DeiT.
  """

  cls_row: bool = False


@dataclasses.dataclass(frozen=True)
class Lape:
  """Layer-adaptive position embedding (arXiv 2212.05262).

  Each block normalizes the position by a norm of its own and adds the result
  to the normalized tokens that its attention sees. The residual stream never
  contains positions; a class token has one.

  Attributes:
    share: every block normalizes the raw position, the first arXiv version's
      method, instead of what the block before has made of it.
    norm: of the positions; all but the default are Table 8's ablations.
  """

  share: bool = False
  norm: Literal["layernorm", "standardize", "affine"] = "layernorm"
  cls_row: ClassVar[bool] = True

  def deliver(self, omega, like):
    """Returns the position for this block and for the next, each like omega.

    Called in the block, whose parameter `pe_norm` it creates.

    Args:
      omega: (1, tokens, width).
      like: the block's norm, whose epsilon this one has.
    """
    kind = f"{self.norm},eps={norms.epsilon(like)}"
    here = norms.make(kind, name="pe_norm")(omega)
    return here, omega if self.share else here


JOINS = {"add": Add, "lape": Lape}


def get(text: str) -> Add | Lape:
  """Returns the instance of one of `JOINS` that `text` stands for."""
  return options.parse("posemb_join", text, JOINS)()
