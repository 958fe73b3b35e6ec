"""What made a model's pixels is recorded, and others are warned about once."""

import logging
import re

import cv2
import pytest
from ml_collections import ConfigDict

from dpn.input_pipeline import fingerprint

EVAL = "decode|resize_small(256)|central_crop(224)|value_range(-1, 1)"


def _config(pp_fn=EVAL, **evals):
  evals["val"] = {"type": "classification", "pp_fn": pp_fn, "data": {}}
  parts = {"pp": "decode_jpeg_and_inception_crop(224)|flip_lr"}
  return {"input": {"data": {"photos": 1}, "photos": parts}, "evals": evals}


def test_what_is_recorded():
  found = fingerprint.of_config(_config())
  assert found["decoder"].startswith(f"OpenCV {cv2.__version__}, ")
  assert found["eval"] == [
    "decode(channels=3)"
    "|resize_small(smaller_size=256, method='area', antialias=False, "
    "rounded=True)|central_crop(crop_size=224, rounded=False)"
  ]
  [train] = found["train"]
  for part in ("ratio_min=0.75", "area_max=100", "method='bilinear'"):
    assert part in train
  assert "flip" not in train
  assert fingerprint.of_config({})["eval"] == []
  padded = fingerprint.of_config(_config(f"{EVAL}|pad_to_shape((256, 256, 3))"))
  [eval_pp] = padded["eval"]
  assert eval_pp.startswith(f"{found['eval'][0]}|pad_to_shape(shape=(256, 256")
  assert fingerprint.of_config(ConfigDict(_config())) == found


@pytest.mark.parametrize(
  ("pp_fn", "words"),
  [
    (EVAL, ()),
    ("decode(3)|resize_small(256, 'area')|central_crop((224))", ()),
    (EVAL.replace("256", "224"), ("smaller_size=224", "smaller_size=256")),
    (EVAL.replace("256", "256, 'bicubic'"), ("'bicubic'", "'area'")),
    (EVAL.replace("256", "256, rounded=False"), ("rounded=False",)),
  ],
)
def test_evaluation_is_compared_with_evaluation(pp_fn, words):
  recorded = fingerprint.of_config(_config())
  found = fingerprint.differences(
    recorded, fingerprint.of_config(_config(pp_fn))
  )
  assert len(found) == bool(words)
  assert all(word in found[0] for word in words)


def test_arguments_that_older_runs_did_not_record():
  here = fingerprint.of_config(_config())
  [now] = here["eval"]
  before = re.sub(", rounded=(True|False)", "", now)
  assert before != now
  assert fingerprint.differences({"eval": [before]}, here) == []
  [found] = fingerprint.differences({"eval": [f"{before}|gone(1)"]}, here)
  assert "gone(1) there" in found


def test_any_evaluation_of_the_run_will_do():
  small = EVAL.replace("256", "224")
  recorded = fingerprint.of_config(_config(small={"pp_fn": small}))
  here = fingerprint.of_config(_config(small))
  scales = fingerprint.of_config(_config(scaled={"pp_scales": (small, EVAL)}))
  assert scales["eval"] == recorded["eval"]
  for known in (recorded, {}, recorded | {"eval": []}):  # or of older files
    assert not fingerprint.differences(known, here)


def test_another_decoder_is_warned_about_once(monkeypatch, caplog):
  recorded = fingerprint.of_config(_config())
  monkeypatch.setattr(cv2, "getBuildInformation", lambda: "x\n  JPEG: j 9\n")
  here = fingerprint.of_config(_config())
  assert here["decoder"] == f"OpenCV {cv2.__version__}, j 9"
  with caplog.at_level(logging.WARNING):
    fingerprint.compare("runs/a", recorded, recorded)
    assert not caplog.records
    for _ in range(2):
      fingerprint.compare("runs/a", recorded, here)
  [record] = caplog.records
  for part in ("runs/a", recorded["decoder"], "j 9", "1111", "352"):
    assert part in record.getMessage()
