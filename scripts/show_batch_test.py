"""The contact sheet: the right images, values and labels."""

import itertools

import ml_collections
import numpy as np
import pytest

from dpn.configs import digits
from dpn.input_pipeline import pp, sources
from dpn.scripts import show_batch
from dpn.scripts.show import sheet


@pytest.fixture
def config():
  config = digits.get_config()
  config.input.pp = (
    'value_range(-1, 1)|onehot(10, key="label", key_result="labels")'
    '|keep("image", "labels")'
  )
  return config


def _drawn(images, texts, legend=()):
  """Returns the figure of two columns, and the boxes of its texts."""
  cells = [sheet.Cell(*cell) for cell in zip(texts, images, strict=True)]
  fig = sheet.draw(cells, 2, caption="a line", legend=legend)
  fig.draw_without_rendering()
  texts = [ax.texts[0] for ax in fig.axes] + [*fig.texts]
  texts += fig.legends if legend else []
  return fig, [text.get_window_extent() for text in texts]


def _nearest(image):
  """Returns the label of the digit that looks most like `image`."""
  source = sources.make({"name": "arrays:digits", "split": "train"})
  rows = source.read(range(len(source)))
  all_images = np.stack([row["image"] for row in rows]) / 255
  return rows[np.abs(all_images - image).sum((1, 2, 3)).argmin()]["label"]


def test_images_go_with_their_labels(config):
  images, texts, caption, legend = show_batch.batch(config, 12)
  assert images.shape == (12, 8, 8, 1)
  assert [str(_nearest(image)) for image in images] == texts
  assert caption.endswith("(12, 8, 8, 1), values -1 to 1")
  assert not legend


def test_mixed_images_have_mixed_labels(config):
  config.seed = 3
  plain, texts, *_ = show_batch.batch(config, 12)
  config.class_names = [f"a {i}" for i in range(10)]
  config.augment = {"flip_lr": True}
  flipped, named, *_ = show_batch.batch(config, 12)
  assert named == [f"a {text}" for text in texts]
  same = [np.allclose(x, y) for x, y in zip(flipped, plain, strict=True)]
  assert not all(same)
  del config.augment, config.class_names
  config.mixup = {"p": 0.0, "cutmix_p": 1.0}
  images, mixed, *_ = show_batch.batch(config, 12)
  own = np.isclose(images, plain)
  assert (own | np.isclose(images, np.roll(plain, 1, axis=0))).all()
  rows, cols = (~own).any((0, 2, 3)), (~own).any((0, 1, 3))
  share = rows.sum() * cols.sum() / 64  # The box that was pasted.
  assert 0.1 < share < 0.5
  for i, text in enumerate(mixed):
    if texts[i] != texts[i - 1]:
      partner = f"{texts[i]} {1 - share:.2f} + {texts[i - 1]} {share:.2f}"
      assert text == partner


def test_label_maps_over_their_images(tmp_path):
  labels = np.zeros((5, 6, 8), np.uint8)
  labels[:, :, :2] = 1
  labels[:, 5] = 255
  path = tmp_path / "maps.npz"
  images = np.zeros((5, 6, 8, 3), np.uint8)
  images[:, 0] = 255
  np.savez(path, **{"train/image": images, "train/mask": labels})
  config = ml_collections.ConfigDict({"num_classes": 2})
  config.input = {"data": {"name": f"arrays:{path}", "split": "train"}}
  config.input.pp = 'decode_labels(2, inkey="mask")|keep("image", "labels")'
  numbers = show_batch.batch(config, 3)
  config.evals = {"val": {"class_names": ("sky", "road")}}
  drawn, texts, _, legend = show_batch.batch(config, 3)
  assert texts == ["sky 0.75 + road 0.25"] * 3
  assert numbers[1] == ["0 0.75 + 1 0.25"] * 3
  names, (sky, road, black) = zip(*legend, strict=True)
  assert names == ("sky", "road", "not labelled")
  np.testing.assert_allclose(drawn[:, 1, 2], [0.55 * sky] * 3)
  np.testing.assert_allclose(drawn[:, 0, 1], [0.45 + 0.55 * road] * 3)
  np.testing.assert_allclose(drawn[:, 5, 1], [0.55 * black] * 3)
  _, boxes = _drawn(drawn[:2], texts[:2], legend)
  assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


def test_captions_under_their_images(tmp_path):
  """What the tokenizer leaves of them, each under its own image."""
  captions = ["A $ign, $5", "CAT", "d" * 200, "a photo of four words " * 9]
  images = np.zeros((4, 6, 6, 1), np.uint8)
  images[:, 0, 0, 0] = np.arange(4)
  path = tmp_path / "pairs.npz"
  np.savez(path, **{"train/image": images, "train/text": captions})
  config = ml_collections.ConfigDict({"task": "contrastive"})
  config.input = {"data": {"name": f"arrays:{path}", "split": "train"}}
  config.input.pp = 'tokenize(120, "sticky")|keep("image", "text")'
  drawn, texts, *_ = show_batch.batch(config, 4)
  places = np.round(3 * drawn[:, 0, 0, 0]).astype(int)
  assert sorted(places) == [0, 1, 2, 3]
  assert texts == [captions[i][:119].lower() for i in places]
  fig, boxes = _drawn(drawn, texts)
  assert all(0 <= box.x0 < box.x1 <= fig.bbox.width for box in boxes[:4])
  assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


def test_embeddings_are_no_images(tmp_path):
  path = tmp_path / "embeddings.npz"
  config = ml_collections.ConfigDict()
  config.input = {"data": {"name": f"arrays:{path}", "split": "train"}}
  for name in ("image", "embedding"):
    np.savez(path, **{f"train/{name}": np.zeros((4, 6), np.float32)})
    with pytest.raises(ValueError, match=rf"{name}': \(4, 6\)}}\. Embeddings"):
      show_batch.batch(config, 4)


def test_labels_in_words():
  names = ["ant", "bee", "cat"]
  for label, given, expected in (
    (np.array([0.38, 0.0, 0.62]), names, "cat 0.62 + ant 0.38"),
    (np.array([0.0, 1.0, 0.0]), None, "1"),
    (np.array([0.905, 0.005, 0.005]), names, "ant"),
    (np.int32(2), names, "cat"),
    (np.zeros((4, 4)), names, ""),
  ):
    assert show_batch.describe(label, given) == expected


def test_texts_alone_and_frames(tmp_path):
  cells = [
    sheet.Cell("right", np.zeros((4, 8, 1)), "green"),
    sheet.Cell("a long query " * 30),
    sheet.Cell("wrong"),
  ]
  fig = sheet.draw(cells, 2, headings={0: "Above", 1: "In between"})
  titles = [ax.get_title(loc="left") for ax in fig.axes[::2]]
  assert titles == ["Above", "In between"]
  assert fig.axes[1].texts[0].get_text().count("\n") == 7
  assert fig.axes[1].texts[0].get_text().endswith("…")
  framed = [ax.spines["top"].get_visible() for ax in fig.axes[:2]]
  assert framed == [True, False]
  fig.savefig(tmp_path / "sheet.png")
  assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")


def test_ops_from_a_configs_pp_modules(config, tmp_path, monkeypatch):
  plain, *_ = show_batch.batch(config, 4)
  (tmp_path / "negative_ops.py").write_text(
    "from dpn.input_pipeline.pp import op\n"
    "OPS = {'negative': op.on_key(lambda: lambda image: 255 - image)}\n"
  )
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setattr(pp, "OPS", dict(pp.OPS))
  monkeypatch.setattr(pp, "_added", [])
  with config.unlocked():
    config.pp_modules = ["negative_ops"]
  config.input.pp = f"negative|{config.input.pp}"
  negative, *_ = show_batch.batch(config, 4)
  np.testing.assert_allclose(negative, 1 - plain, atol=1e-6)
