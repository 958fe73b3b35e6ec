"""What tests of evaluators share."""

import numpy as np
import pytest


@pytest.fixture(name="save")
def _save(tmp_path):
  """Returns a function that makes arrays a data set and returns its config."""

  def save(**arrays):
    path = tmp_path / "data.npz"
    np.savez(path, **{f"test/{key}": array for key, array in arrays.items()})
    return {"name": f"arrays:{path}", "split": "test"}

  return save


def two_towers(variables, batch):
  """Embeds images as they are, texts as the sum of their bytes' rows."""
  ztxt = None
  if "text" in batch:
    ztxt = variables["table"][batch["text"]].sum(axis=1)
  return batch.get("image"), ztxt, {}
