"""What tests of configs share: a list of all configs, and made-up data sets."""

import importlib
import pathlib

import numpy as np
import pytest

from dpn.input_pipeline import conftest as testing

FOLDER = pathlib.Path(__file__).parent
CONFIGS = sorted(
  ".".join(path.relative_to(FOLDER).with_suffix("").parts)
  for path in FOLDER.rglob("*.py")
  if "\n@common.recipe(" in path.read_text()
)


def module(name: str):
  return importlib.import_module(f"dpn.configs.{name}")


def quick_first(names: list[str], quick: tuple[str, ...]) -> list:
  """Returns names for parametrize, all but the quick ones marked slow."""
  rest = [name for name in names if name not in quick]
  return [*quick, *(pytest.param(n, marks=pytest.mark.slow) for n in rest)]


@pytest.fixture(scope="package")
def tfds(tmp_path_factory):
  """Makes data sets of a few images, where TFDS looks for them."""
  folder = str(tmp_path_factory.mktemp("tfds"))
  image = testing.jpeg(np.random.default_rng(0), 32, 32)

  def write(name, key, classes, where="", **splits):
    examples = [{"image": image, key: i % 10} for i in range(1000)]
    testing.write_tfds(
      f"{folder}{where}",
      name,
      {split: examples[:n] for split, n in splits.items()},
      {"image": "jpeg", key: classes},
    )

  testing.imagenet2012(folder, train=100, validation=8)
  write("cifar10", "label", 10, train=8, test=8)
  write("cifar100", "label", 100, train=1000, test=8)
  write("oxford_iiit_pet", "label", 37, train=1000, test=8)
  write("imagenet21k", "labels", 21_843, full=8)
  write("tfds", "label", 397, where="/sun397", train=8, validation=8, test=8)
  captions = [{"image": image, "captions/text": ["a cat", "two"]}] * 8
  testing.write_tfds(
    folder,
    "coco_captions",
    dict.fromkeys(("train", "test"), captions),
    {"image": "jpeg", "captions/text": "texts"},
  )
  photo = testing.jpeg(np.random.default_rng(0), 8, 8)
  label_map = testing.png(np.arange(64).reshape(8, 8) // 6)
  for name, key in (("camvid", "label"), ("scene_parse150", "annotation")):
    testing.write_tfds(
      folder,
      name,
      dict.fromkeys(
        ("train", "val", "test"), [{"image": photo, key: label_map}] * 8
      ),
      {"image": "jpeg", key: "png"},
    )
  arrays = {}
  for split in ("train", "minival", "test"):
    arrays[f"{split}/image"] = np.zeros((50, 128, 128, 3), np.uint8)
    arrays[f"{split}/label"] = np.arange(50) % 10
  np.savez(f"{folder}/imagenette.npz", **arrays)
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("TFDS_DATA_DIR", folder)
    yield folder
