"""How images are prepared, as runs, timm and Hugging Face say it."""

import pytest

from dpn.weights import hf_vit, preprocessing, timm_vit
from dpn.weights.pixels import Pixels

HALF = Pixels((0.5,), (0.5,))
RANGE = "value_range(-1, 1)"


@pytest.mark.parametrize(
  ("evals", "want"),
  [
    ({}, None),
    (
      {
        "fewshot": {"type": "fewshot_lsr", "pp_eval": "resize(4)"},
        "corruptions": {"pp_fn": "resize(5)|corrupt"},
        "val": {"type": "classification", "pp_fn": 'resize(6)|keep("image")'},
      },
      "resize(6)",
    ),
    ({"retrieval": {"pp_img": "resize(3)", "pp_txt": "lower"}}, "resize(3)"),
    ({"fewshot_lsr": {"pp_eval": "resize(4)"}}, "resize(4)"),
    (
      {"x": {"type": "segmentation", "pp_fn": "resize_small(9)"}},
      "resize_small(9)|central_crop((2, 2))",
    ),
  ],
)
def test_evaluation_of_a_run(evals, want):
  config = {"input": {"pp": "random_crop(2)"}, "evals": evals}
  assert preprocessing.of_run(config) == want


TIMM = {"input_size": [3, 224, 224], "interpolation": "bicubic"}
TIMM |= {"mean": [0.5] * 3, "std": [0.5] * 3}
HF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
CUBIC = 'method="bicubic", antialias=True'
DOWN, CENTER = "rounded=False", "central_crop((224, 224), rounded=True)"


@pytest.mark.parametrize(
  ("changes", "want"),
  [
    ({"crop_pct": 0.9}, f"resize_small(248, {CUBIC}, {DOWN})|{CENTER}"),
    ({}, f"resize_small(256, {CUBIC}, {DOWN})|{CENTER}"),
    (
      {"crop_pct": 1.0, "crop_mode": "squash"},
      f"resize((224, 224), {CUBIC})|{CENTER}",
    ),
    ({"crop_mode": "border"}, None),
    ({"interpolation": "lanczos"}, None),
    ({"input_size": [3, 224, 160]}, None),
    ({"input_size": [224]}, None),
    ({"mean": None}, None),
  ],
)
def test_timm(changes, want):
  said = timm_vit.describe({"pretrained_cfg": {**TIMM, **changes}}, None)
  assert said.pp == (want and f"decode|{want}|{RANGE}")


LINEAR = 'method="bilinear", antialias=True'
SQUARE = {"height": 8, "width": 8}
CROP = {"do_center_crop": True, "crop_size": SQUARE}


@pytest.mark.parametrize(
  ("image", "want"),
  [
    ({"size": SQUARE}, f"resize((8, 8), {LINEAR})"),
    ({"size": 8}, f"resize((8, 8), {LINEAR})"),  # of before transformers 4.25
    (
      {"size": {"shortest_edge": 9}, "resample": 3, **CROP},
      f"resize_small(9, {CUBIC}, {DOWN})|central_crop((8, 8))",
    ),
    (
      {"do_resize": False, "do_center_crop": True, "crop_size": 8},
      "central_crop((8, 8))",
    ),
    ({"size": SQUARE, "resample": 0}, 'resize((8, 8), method="nearest")'),
    ({"size": SQUARE, "resample": 1}, None),  # Lanczos
    ({"size": {"longest_edge": 8}}, None),
    ({"size": None}, None),
    ({"size": SQUARE, "do_center_crop": True}, None),
  ],
)
def test_hugging_face(image, want):
  said = hf_vit.describe({}, {**HF, **image})
  assert said.pp == (want and f"decode|{want}|{RANGE}")


@pytest.mark.parametrize(
  "resizing",
  [
    f"resize_small(256, {CUBIC}, {DOWN})|central_crop((224, 224))",
    f"resize_small(418, {LINEAR}, {DOWN})|central_crop((384, 384))",
    f"resize_small(251, {LINEAR}, {DOWN})|central_crop((224, 224))",
    f"resize((256, 256), {LINEAR})|central_crop((224, 224))",
    f"resize((224, 224), {LINEAR})",
  ],
)
def test_written_for_others_and_read_again(resizing):
  pp = f"decode|{resizing}|{RANGE}"
  image = HF | preprocessing.for_library(pp, "transformers")[0]
  assert hf_vit.describe({}, image).pp == pp
  size = [3, *preprocessing.describe(pp)["size"]]
  said, _ = preprocessing.for_library(pp, "timm")
  said = {**TIMM, "input_size": size, **said}
  got = timm_vit.describe({"pretrained_cfg": said}, None).pp
  got = got.replace(", rounded=True", "")  # which transformers' crop is not
  crop = "|central_crop((224, 224))"
  assert got.replace(crop, "") == pp.replace(crop, "")


@pytest.mark.parametrize(
  "pp",
  [
    "decode|resize_small(8)|central_crop((8, 4))",
    "decode|resize(8)|pad_to_shape((9, 9, 3))",
    "decode|resize_long(8)",
  ],
)
def test_what_others_cannot_say(pp):
  said, [note] = preprocessing.for_library(pp, "timm")
  assert said == {}
  assert f"timm has no words for this model's preprocessing, {pp!r}" in note


@pytest.mark.parametrize(
  ("resizing", "text"),
  [
    ("resize(8)", "transformers antialiases images"),
    ('resize(8, method="area")', "transformers has no method 'area'"),
    ("resize_small(8)|central_crop(8)", "transformers has no method 'area'"),
  ],
)
def test_others_antialias(resizing, text):
  said, [note] = preprocessing.for_library(f"decode|{resizing}", "transformers")
  assert said["resample"] == 2  # bilinear
  assert note.startswith(text)


@pytest.mark.parametrize(
  ("pixels", "size", "patch", "want"),
  [
    (
      *(None, (224, 224), (16, 16, 3)),
      "decode|resize_small(256)|central_crop(224)|value_range(-1, 1)",
    ),
    (
      *(Pixels((0,), (1,)), None, (14, 14, 3)),
      "decode|resize_small(256)|central_crop(224)|value_range(0, 1)",
    ),
    (
      *(HALF, None, (48, 48, 1)),
      f"decode(channels=1)|resize_small(219)|central_crop(192)|{RANGE}",
    ),
    (HALF, (8, 16), (4, 4, 3), "decode|resize((8, 16))|value_range(-1, 1)"),
    (HALF, (None, None), (4, 4, 3), "decode|value_range(-1, 1)"),
  ],
)
def test_what_nobody_says_is_as_big_vision_evaluates(pixels, size, patch, want):
  got = preprocessing.make(None, pixels, size, patch)
  assert got.pp == want
  assert got.shape[2] == patch[2]
  if size:
    assert got.shape[:2] == size
  said = [want.split("|")[0]] + ([want.split("|")[-1]] if pixels else [])
  assert [*got.assumed] == [op for op in want.split("|") if op not in said]


def test_what_a_file_says_is_taken():
  pp, pixels = "resize(6)|value_range(0, 1)", Pixels((0,), (1,))
  got = preprocessing.make(pp, HALF, (9, 9), (3, 3, 1))
  assert got == preprocessing.Preprocess(pp, (6, 6, 1), pixels)
  got = preprocessing.make("value_range", HALF, (9, 9), (3, 3, 3))
  assert got.shape == (9, 9, 3)
