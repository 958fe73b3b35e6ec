"""Pictures of what a run predicts; a command leaves them in its folder."""

import os
from collections.abc import Iterable

PREDICTIONS, RETRIEVAL = "predictions.png", "retrieval.png"
COMMANDS = {
  PREDICTIONS: "scripts.show_predictions",
  RETRIEVAL: "scripts.show_retrieval",
}


def find(folders: Iterable[str]) -> list[tuple[str, str]]:
  """Returns path and command of every picture in the folders of runs."""
  every = (
    (os.path.join(folder, name), command)
    for folder in folders
    for name, command in COMMANDS.items()
  )
  return [(path, command) for path, command in every if os.path.exists(path)]
