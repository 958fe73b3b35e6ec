"""The tokens besides patches: class token and registers, and their norms.

`norms.TokenGrid` inserts them and normalizes them separately.
"""

# Values of `prefix_norm` (arXiv 2602.08626).
NORMS = ("shared", "own", "own_final")


def check(config):
  """Raises ValueError if `vit.Config` options conflict with these tokens."""
  own, number = config.prefix_norm, config.registers
  per_token = config.bind("norm").func.PER_TOKEN
  problem = None
  if number < 0 or (config.registers_last and not number):
    problem = "registers must be 0 or more, and registers_last needs some"
  elif number and config.joins_in_blocks:
    problem = (
      f"registers have no positions, but posemb_join={config.posemb_join!r} "
      "adds some to every token of every block. Use posemb_join='add'"
    )
  elif own == "shared":
    return
  elif not (config.has_cls or number):
    problem = (
      f"prefix_norm={own!r} is for class tokens and registers, and there are "
      "none. Use pool_type='tok' or registers=4"
    )
  elif not per_token and (own == "own" or config.final_norm == "norm"):
    problem = (
      f"prefix_norm={own!r}: norm={config.norm!r} looks at several tokens"
    )
  elif own == "own_final" and not config.final_norm:
    problem = "prefix_norm='own_final' needs the last norm, final_norm=True"
  if problem:
    raise ValueError(f"{problem}; got registers={number}.")
