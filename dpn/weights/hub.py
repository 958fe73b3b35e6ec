"""Models by their names on the Hugging Face hub.

This uses huggingface_hub, which is optional. Its own environment variables
HF_HOME, HF_TOKEN and HF_HUB_OFFLINE say where its cache is, what its token is
and whether it may use the network.
"""

import os
import re

_NAME = re.compile(r"(?:hf-hub:|hf://)?([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
# Never pickles.
PATTERNS = (
  *("config.json", "preprocessor_config.json"),
  *("params.safetensors", "model*.safetensors", "model.safetensors.index.json"),
)


def fetch(path: str) -> str | None:
  """Returns the local folder of a model on the hub; None if this names none.

  Args:
    path: "org/name" or "org/name@revision". If the working directory has a
      folder "org", this is a path in it that does not exist, and names nothing.

  Raises:
    FileNotFoundError: the model is not in the cache and cannot be fetched.
  """
  match = _NAME.fullmatch(path)
  if not match or os.path.isdir(path.partition("/")[0]):
    return None
  name, revision = match.groups()
  try:
    import huggingface_hub

    folder = huggingface_hub.snapshot_download(
      name, revision=revision, allow_patterns=list(PATTERNS)
    )
    if not re.search(r"--[^/]+/snapshots/[0-9a-f]{40}$", folder):
      raise ValueError(f"the cache's refs lead to {folder}")
    return folder
  except ImportError:
    reason = "pip install huggingface_hub"
  except (OSError, ValueError) as error:
    reason = f"{type(error).__name__}: {error}".partition("\n")[0]
  raise FileNotFoundError(
    f"As a name on the Hugging Face hub it could not be had ({reason}). "
    f"Without a network, put the files of https://huggingface.co/{name}/tree/"
    f"{revision or 'main'} that are named {', '.join(PATTERNS)} into a folder, "
    "and give its path."
  )
