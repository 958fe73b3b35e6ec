"""Zero-shot classification by towers whose answers are known."""

import numpy as np
import pytest

from dpn import sharding
from dpn.evaluators import conftest, zeroshot
from dpn.input_pipeline import sources


def _evaluator(path, **kw):
  return zeroshot.Evaluator(
    conftest.two_towers,
    mesh=sharding.make_mesh(),
    batch_size=4,
    pp_txt='tokenize(4, "none")',
    data_dir="/tfds",  # means nothing to these data
    **{"datasets": {"toy": (f"arrays:{path}", "test")}, "pp_img": "", **kw},
  )


@pytest.fixture(name="path")
def _path(tmp_path):
  """Seven images: of class 0, 1 and 2, the last two of the wrong one."""
  images = np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1, 2, 0]]
  arrays = {"image": images, "label": np.int32([0, 1, 2, 0, 1, 0, 2])}
  np.savez(tmp_path / "a.npz", **{f"test/{k}": x for k, x in arrays.items()})
  return tmp_path / "a.npz"


def _table():
  """Rows for bytes: "a", "b" and "c" name classes, "q" all of them."""
  table = np.zeros((260, 3), np.float32)
  table[[4 + ord(x) for x in "abc"]] = np.eye(3)
  return {"table": table}


def test_accuracy(path):
  evaluator = _evaluator(path, class_names={"toy": ["A", "B", "C"]})
  evaluator.check(_table())
  got = evaluator.run(_table())
  assert got == {"toy_prec@1": pytest.approx(5 / 7), "toy_prec@5": 1.0}
  # Names in another order: only class 1 is right, twice in seven.
  evaluator = _evaluator(path, class_names={"toy": ["c", "b", "a"]})
  assert evaluator.run(_table())["toy_prec@1"] == pytest.approx(4 / 7)


def test_classes_are_means_of_prompts_and_other_names():
  z = np.float32([[3, 0], [0, 4], [1, 0], [0, -2]])
  got = zeroshot.class_embeddings(z / 2, np.array([0, 0, 1, 1]), 2)
  want = np.array([[1.5, 2], [0.5, -1]])
  want /= np.linalg.norm(want, axis=1, keepdims=True)
  np.testing.assert_allclose(got, want, rtol=1e-6)


def test_same_embeddings_are_the_first_class(path):
  names = {"toy": ["x", "y", "z"]}
  got = _evaluator(path, class_names=names).run(_table())
  assert got["toy_prec@1"] == pytest.approx(3 / 7)


class Named(sources.Source):
  """Four classes with names in `label`, and two others in `coarse`."""

  def __init__(self, split):
    self.name = split

  def __len__(self):
    return 4

  def __getitem__(self, index):
    image = np.eye(3, dtype=np.float32)[index // 2]
    return {"image": image, "label": index, "coarse": index // 2}

  def class_names(self, label_key):
    return ["a", "a", "b", "b"] if label_key == "label" else None


def test_whose_names_the_labels_have(monkeypatch):
  def evaluator(pp_img, *names):
    kw = {"class_names": {"toy": names}} if names else {}
    datasets = {"toy": (f"{__name__}:Named", "test")}
    return _evaluator("", datasets=datasets, pp_img=pp_img, **kw)

  assert evaluator('keep("image", "label")').run(_table())["toy_prec@1"] == 0.5
  with pytest.raises(ValueError, match="has 4 classes, but there are 2 names"):
    evaluator("", "a", "b")
  with pytest.raises(ValueError, match="has 4 classes, but there are 5 names"):
    evaluator("", *"abcde")
  with pytest.raises(
    ValueError, match=r"label 0 is 'a' in the data, 'B' there"
  ):
    evaluator("", *"BaAb")
  own = lambda: lambda example, rng: {**example, "label": example["coarse"]}
  monkeypatch.setitem(zeroshot.pp.OPS, "own", own)
  for changed in ('copy("coarse", "label")', "own"):
    with pytest.raises(ValueError, match="pp_img may change its labels: give"):
      evaluator(changed)
    assert evaluator(changed, "a", "b").run(_table())["toy_prec@1"] == 1.0


def test_bad_input(path):
  with pytest.raises(ValueError, match="has no names of its classes, or an op"):
    _evaluator(path)
  with pytest.raises(ValueError, match="Unknown templates 'clip'"):
    _evaluator(path, class_names={"toy": ["a"]}, templates="clip")
  with pytest.raises(ValueError, match="has 3 classes, but there are 2 names"):
    _evaluator(path, class_names={"toy": ["a", "b"]})
  with pytest.raises(ValueError, match=r"in class_names 'toys'.*mean 'toy'"):
    _evaluator(path, class_names={"toys": ["a", "b", "c"]})
  images, labels = np.eye(3, dtype=np.float32), np.int32([0, 1, -1])
  ignored = path.with_name("b.npz")
  np.savez(ignored, **{"test/image": images, "test/label": labels})
  names = {"toy": ["a", "b", "c"]}
  evaluator = _evaluator(ignored, class_names=names)
  with pytest.raises(ValueError, match="toy: 1 labels are not from 0 to 2"):
    evaluator.run(_table())
  evaluator = _evaluator(path, class_names=names)
  table = _table()
  table["table"][4 + ord("a")] = np.nan
  with pytest.raises(ValueError, match="texts are not finite"):
    evaluator.run(table)
  images[1, 0] = np.nan
  np.savez(ignored, **{"test/image": images, "test/label": np.int32([0, 1, 2])})
  with pytest.raises(ValueError, match="of 1 images of toy are not finite"):
    _evaluator(ignored, class_names=names).run(_table())


def test_images_that_the_model_cannot_take(path):
  evaluator = _evaluator(path, class_names={"toy": ["a", "b", "c"]})
  evaluator.predict_fn = lambda variables, batch: (
    batch["image"] @ np.zeros((5, 3)) if "image" in batch else None,
    *conftest.two_towers(variables, batch)[1:],
  )
  with pytest.raises(TypeError, match="dot_general"):
    evaluator.check(_table())
