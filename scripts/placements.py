"""Draws where each `block_ln` of dpn/models/placement.py normalizes.

  python -m scripts.placements -o docs/methods.md

Read from left to right: a token passes norms N and a layer; x is what entered
the sublayer. Of 12 blocks, up to three kinds are drawn, numbered by the first.
"""

from dpn.models import encoder, placement
from dpn.scripts.results import output

START, END = "<!-- placements -->", "<!-- end -->"
DEPTH = 12


def sublayer(where: placement.Placement, layer: str, at: str) -> str:
  """Returns a sublayer as text, with norms `at` "pre", "post" or both."""
  post = where.post if "post" in at else None
  pre = "N" if where.pre_gain == 1 else f"{where.pre_gain:.2f} N"
  scaled = post == "stream" and where.stream_gain != 1
  parts = [pre] * ("pre" in at) + [layer] + ["N"] * (post == "branch")
  parts.append(f"+ {where.stream_gain:.3g} x" if scaled else "+ x")
  return " → ".join(parts + ["N"] * (post == "stream"))


def draw(where: placement.Placement) -> str:
  """Returns one block as a line of text."""
  attention = "SA, N inside" if where.sa_inner else "SA"
  attention += ", own q, k, v of the class token" * where.prefix_qkv
  mlp = "MLP" if where.mlp_inner == "none" else "MLP, N inside"
  sa = sublayer(where, attention, where.sa)
  return f"{sa} │ {sublayer(where, mlp, where.mlp)}"


def lines() -> list[str]:
  """Returns drawings of all placements, at most three kinds of block each."""
  result = []
  for name in placement.PLACEMENTS:
    config = encoder.Config(block_ln=name, depth=DEPTH)
    kinds: dict[str, int] = {}  # text → first block
    for i, (_, fields) in enumerate(encoder.bind_blocks(config)):
      kinds.setdefault(draw(fields["placement"]), i + 1)
    found = list(kinds.items())
    # Of more than three kinds, the first two and the last.
    for text, i in found[:2] + found[2:][-1:]:
      label = name if len(found) == 1 else f"{name}, {i}"
      result.append(f"{label:<20}{text}")
  return result


def main(argv=None):
  parser = output.parser(__doc__)
  help_ = "the page, which has marks for them"
  parser.add_argument("-o", "--output", required=True, help=help_)
  path = parser.parse_args(argv).output
  with output.errors_in_a_line():
    drawn = "\n".join(["", "", "```", *lines(), "```", "", ""])
    output.replace_between(path, START, END, drawn)


if __name__ == "__main__":
  main()
