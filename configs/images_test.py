"""What is found in folders of pictures, and in runs to start from."""

import json
import pathlib

import pytest

from dpn.configs import images
from dpn.input_pipeline import conftest as testing


@pytest.mark.parametrize(
  ("folders", "train", "val", "unused"),
  [
    (["train", "val", "test"], "train", "val", None),
    (["Train", "Validation"], "Train", "Validation", None),
    (["train", "TEST", "extra"], "train", "TEST", "extra"),
    (["train", "Train", "val"], "train", "val", "Train"),
    (
      ["train", "Test_images", "old"],
      *("train[:90%]", "train[90%:]", "Test_images, old"),
    ),
  ],
)
def test_splits(tmp_path, caplog, folders, train, val, unused):
  for name in folders:
    testing.class_folders(tmp_path / name, classes=2, images=1)
  splits, classes, _ = images.look(str(tmp_path))
  assert splits == {"train": train, "val": val}
  assert classes == ["class0", "class1"]
  said = f"the pictures in {unused} are not used" in caplog.text
  assert said == bool(unused) == bool(caplog.text)


def test_a_folder_that_is_not_there(tmp_path):
  with pytest.raises(ValueError, match="/none', which does not exist: append"):
    images.get_config(f"data={tmp_path}/none")


@pytest.mark.parametrize(
  ("pp", "given", "expected"),
  [
    ("decode_jpeg_and_inception_crop(32)|flip_lr", "", 32),
    ("decode|resize((64, 64))|value_range", ",res=48", 48),
    ("decode", "", 224),
  ],
)
def test_a_runs_resolution_and_stem(tmp_path, pp, given, expected):
  testing.class_folders(tmp_path / "photos", classes=2, images=1)
  pathlib.Path(tmp_path, "config.json").write_text(
    json.dumps(
      {
        "model_name": "vit",
        "model": {"variant": "Ti/16", "stem_ln": "dpn"},
        "input": {"pp": pp},
      }
    )
  )
  config = images.get_config(f"data={tmp_path}/photos,init={tmp_path}{given}")
  assert f"inception_crop({expected})" in config.input.pp
  assert (config.model.variant, config.model.stem_ln) == ("Ti/16", "dpn")
  scratch = images.get_config(f"data={tmp_path}/photos").model
  assert (scratch.stem_ln, scratch.stem) == ("dpn", "patch_stats")
