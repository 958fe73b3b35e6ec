"""CamVid is read alike from TFDS's format and from files."""

import numpy as np
import pytest

from dpn.configs import camvid
from dpn.input_pipeline import conftest as testing
from dpn.input_pipeline import pipeline


@pytest.mark.parametrize("form", ["pairs", "tfds"])
def test_label_maps(tmp_path, form):
  ids = np.arange(64).reshape(8, 8) % 12
  image, label = testing.jpeg(np.random.default_rng(0), 8, 8), testing.png(ids)
  if form == "pairs":
    for folder, name, file in (
      ("images", "a.jpg", image),
      ("annotations", "a.png", label),
    ):
      path = tmp_path / folder / "test" / name
      path.parent.mkdir(parents=True)
      path.write_bytes(file)
    arg = f"data=pairs:{tmp_path}"
  else:
    examples = {"test": [{"image": image, "label": label}]}
    features = {"image": "jpeg", "label": "png"}
    testing.write_tfds(str(tmp_path), "camvid", examples, features)
    arg = f"data_dir={tmp_path}"
  section = camvid.get_config(f"{arg},side=8,crop=8").evals.test
  [batch] = pipeline.evaluation(section.data, section.pp_fn, 1)
  want = np.where(ids == camvid.VOID, 255, ids)
  np.testing.assert_array_equal(batch["labels"][0], want)
