"""Recall against sorting; the evaluator on known embeddings."""

import numpy as np
import pytest

from dpn import sharding
from dpn.evaluators import base, conftest, retrieval
from dpn.input_pipeline.sources import arrays

RNG = np.random.default_rng(0)


def test_against_sorting(monkeypatch):
  monkeypatch.setattr(retrieval, "_BLOCK", 7)
  zimg = RNG.normal(size=(20, 5))
  owner = np.concatenate([np.arange(20), RNG.integers(0, 20, 25)])
  ztxt = RNG.normal(size=(45, 5)) + zimg[owner]
  similar = np.float32(zimg) @ np.float32(ztxt).T
  got = retrieval.recall(zimg, ztxt, owner, ks=(1, 5, 10))
  for k in (1, 5, 10):
    first = np.argsort(-similar, axis=1, kind="stable")[:, :k]
    hits = owner[first] == np.arange(20)[:, None]
    assert got[f"img2txt_recall@{k}"] == hits.any(axis=1).mean()
    first = np.argsort(-similar, axis=0, kind="stable")[:k]
    hits = first == owner[None]
    assert got[f"txt2img_recall@{k}"] == hits.any(axis=0).mean()
  assert 0.1 < got["img2txt_recall@1"] < 1


def test_collapsed_embeddings_are_chance():
  got = retrieval.recall(np.ones((10, 3)), np.ones((10, 3)), range(10), (1, 5))
  assert list(got.values()) == [0.1, 0.5, 0.1, 0.5]


@pytest.mark.parametrize(
  ("owner", "ztxt", "message"),
  [
    ([0, 1], np.ones((3, 2)), r"and \(3, 2\) of texts, and 2 entr"),
    ([0, 0], np.ones((2, 2)), "must name each of the 2 images"),
    ([0, 2], np.ones((2, 2)), "must name each of the 2 images"),
    ([0, 1], np.full((2, 2), np.nan), "2 texts are not finite.* beyond"),
  ],
)
def test_bad_input(owner, ztxt, message):
  with pytest.raises(ValueError, match=message):
    retrieval.recall(np.ones((2, 2)), ztxt, owner)


def test_captions_of_a_source():
  columns = {"captions/text": np.array([["a", "b"], ["c", "d"]])}
  source = arrays.ArraySource("two", columns)
  rows = retrieval.captions(source, "captions/text").read(range(4))
  got = [(str(x["text"]), int(x["owner"])) for x in rows]
  assert got == [("a", 0), ("b", 0), ("c", 1), ("d", 1)]
  with pytest.raises(ValueError, match="two, example 0: Unknown text_key 'x'"):
    retrieval.captions(source, "x")


@pytest.mark.parametrize(
  "text", [None, 3, [], ["a", None], [["a"]], "", ["a", " "]]
)
def test_what_is_no_caption(text):
  texts = np.array(["a", None], object)
  texts[1] = text
  source = arrays.ArraySource("two", {"text": texts})
  with pytest.raises(ValueError, match="two, example 1: 'text' holds"):
    retrieval.captions(source, "text")


def test_an_image_that_is_there_twice():
  columns = {"text": np.array(["a", "b"]), "id": np.array(["x.jpg", "x.jpg"])}
  columns["image"] = np.zeros((2, 3, 3))
  source = arrays.ArraySource("two", columns)
  assert len(retrieval.captions(source, "text")) == 2  # of a vocabulary
  with pytest.raises(ValueError, match="example 1: this image is there twice"):
    retrieval.captions(source, "text", once=True)
  columns["image"][1] = 1  # another one, in another folder
  assert len(retrieval.captions(source, "text", once=True)) == 2


@pytest.mark.parametrize("batch_size", [4, 8])
def test_every_example_once(save, batch_size):
  """Six images, two captions each, in batches with padding, on 4 devices."""
  letters = np.array([["a", "x"], ["b", "x"], ["c", "x"]] * 2)
  letters[3:, 0] = list("def")
  table = np.zeros((260, 6), np.float32)
  table[4 + ord("a") : 4 + ord("g")] = np.eye(6)
  table[4 + ord("f")] = table[4 + ord("a")]  # "f" is taken for "a"
  evaluator = retrieval.Evaluator(
    conftest.two_towers,
    mesh=sharding.make_mesh(),
    batch_size=batch_size,
    data=save(image=np.eye(6, dtype=np.float32), text=letters),
    pp_img="",
    pp_txt="tokenize(2)",
    ks=(1, 2),
  )
  variables = {"table": table}
  evaluator.check(variables)
  # No text is like image 5. To "x" all images are the same: it finds image 0
  # first, then 1. "f" finds image 0.
  assert evaluator.run(variables) == {
    **{"img2txt_recall@1": 5 / 6, "img2txt_recall@2": 5 / 6},
    **{"txt2img_recall@1": 6 / 12, "txt2img_recall@2": 7 / 12},
  }
  assert "retrieval" in base.TYPES
