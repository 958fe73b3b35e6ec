"""Where curves can be looked at besides the files: TensorBoard, W&B."""


def tag(name: str, group: str) -> str:
  """Returns the name under which a number is shown: within some group."""
  return name if "/" in name else f"{group}/{name}"
