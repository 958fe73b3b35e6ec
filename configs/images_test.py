"""What is found in folders of pictures, and in runs to start from."""

import json

import pytest

from dpn.configs import images
from dpn.input_pipeline import conftest as testing
from dpn.trainers import build


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
  splits, classes, sizes = images.look(str(tmp_path))
  assert splits == {"train": train, "val": val}
  assert sizes == (
    {"train": 1, "val": 0} if "%" in val else dict.fromkeys(splits, 2)
  )
  assert classes == ["class0", "class1"]
  said = f"the pictures in {unused} are not used" in caplog.text
  assert said == bool(unused) == bool(caplog.text)


def test_a_single_class(tmp_path):
  testing.class_folders(tmp_path, classes=1, images=1)
  (tmp_path / "empty").mkdir()
  with pytest.raises(ValueError, match="holds 1 classes with images"):
    images.get_config(f"data={tmp_path}")


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
  model = {"variant": "Ti/16", "stem_ln": "dpn"}
  file, run = tmp_path / "config.json", {"model_name": "vit", "model": model}
  file.write_text(json.dumps(run | {"input": {"pp": pp}}))
  arg = f"data={tmp_path}/photos,init={tmp_path}"
  config = images.get_config(arg + given)
  assert f"inception_crop({expected})" in config.input.pp
  assert (config.model.variant, config.model.stem_ln) == ("Ti/16", "dpn")
  assert "pool_type" not in config.model  # nor in the run's: the model's own
  # One word for both options; another stem that is asked for replaces both.
  model |= {"stem": "patch_stats", "stem_kw": {"statistics": "mean"}}
  file.write_text(json.dumps(run))
  own, dpn = (images.get_config(arg + more) for more in ("", ",stem_ln=dpn"))
  assert (own.model.stem, own.table.arm) == ("patch_stats", "patch_stats")
  assert own.model.stem_kw.statistics == "mean"
  assert (dpn.model.stem_ln, dpn.model.get("stem")) == ("dpn", None)
  assert not dpn.model.stem_kw
  [arm] = images.sweep(f"{arg},seeds=1")
  assert arm["name"] == "patch_stats"
  scratch = images.get_config(f"data={tmp_path}/photos").model
  assert (scratch.stem_ln, scratch.stem) == ("dpn", "patch_stats")


def test_a_plain_vit_sees_standardized_pixels_and_what_starts_from_it(tmp_path):
  testing.class_folders(tmp_path / "photos", classes=2, images=1)
  arg = f"data={tmp_path}/photos"
  pps = lambda c: (c.input.pp, c.evals.val.pp_fn)
  stems = ("none", "tract", "dpn", "patch_stats")
  plain, tract, dpn, stats = (
    images.get_config(f"{arg},stem_ln={stem}") for stem in stems
  )
  for of, pixels in (
    (plain, "|vgg_value_range|"),
    (tract, "|vgg_value_range|"),
    (dpn, "|value_range(-1, 1)|"),
    (stats, "|value_range(-1, 1)|"),
  ):
    assert all(pixels in pp for pp in pps(of))
  for config in (plain, dpn):
    (tmp_path / "config.json").write_text(config.to_json())
    after = images.get_config(f"{arg},init={tmp_path}")
    here, there = (build.pixels(c) for c in (config, after))
    assert here.close_to(there)
