"""Text ops, against the table in big_vision's docstring and by hand."""

import numpy as np
import pytest

from dpn.input_pipeline import batches, pp
from dpn.input_pipeline.text import prompts, tokenizers

A = ord("a") + 4


def _run(spec, rng=None, **example):
  return pp.make(spec)(example, rng or np.random.default_rng(0))


@pytest.fixture
def _ones(monkeypatch):
  """A vocabulary in which every letter is 2 and the end of a text is 1."""
  ids = lambda text: [2] * len(text)
  ones = tokenizers.Tokenizer(ids, str, 3, None, 1, 0)
  monkeypatch.setattr(tokenizers, "make", lambda model: ones)


@pytest.mark.usefixtures("_ones")
@pytest.mark.parametrize(
  ("eos", "pad", "ids"),
  [
    ("none", 0, ([2, 0, 0], [2, 2, 0], [2, 2, 2])),
    ("yes", 0, ([2, 1, 0], [2, 2, 1], [2, 2, 2])),
    ("sticky", 0, ([2, 1, 0], [2, 2, 1], [2, 2, 1])),
    ("sticky", 1, ([2, 1, 1], [2, 2, 1], [2, 2, 1])),
    ("sticky", "<eos>", ([2, 1, 1], [2, 2, 1], [2, 2, 1])),
  ],
)
def test_ends_and_padding(eos, pad, ids):
  """The examples of get_pp_tokenize in big_vision's ops_text.py."""
  for text, want in zip(("a", "aa", "aaa"), ids, strict=True):
    got = _run(f"tokenize(3, {eos!r}, pad_value={pad!r})", text=text)["text"]
    assert got.tolist() == want
    assert got.dtype == np.int32


def test_tokenize_bytes():
  spec = 'tokenize(5, "sticky", inkey="caption", outkey="text")'
  for text in ("aA", b"aA", np.str_("aA"), np.bytes_(b"aA"), np.array("aA")):
    assert _run(spec, caption=text)["text"].tolist() == [A, A, 1, 0, 0]
  spec = 'tokenize(3, "none", lower=False, add_bos=True)'
  assert _run(spec, text="aAb")["text"].tolist() == [2, A, A - 32]
  assert pp.make("tokenize(4)").vocabularies == {"text": (260, "", "bytes")}
  assert pp.make('tokenize(4, pad_value=300, outkey="t")').vocabularies == {
    "t": (301, "", "bytes")
  }


def test_one_of_several_captions_by_position():
  """A pure function of seed and position; each comes about equally often."""
  captions = {
    "captions": {"text": np.array([b"one", b"three", b"two"], object)}
  }
  ops = (
    'coco_captions|choice(inkey="captions", outkey="text")|lower|keep("text")'
  )
  draw = lambda seed, i: _run(ops, batches.generator(seed, i), **captions)[
    "text"
  ]
  drawn = [draw(0, i) for i in range(300)]
  assert drawn == [draw(0, i) for i in range(300)]
  assert drawn != [draw(1, i) for i in range(300)]
  counts = [drawn.count(text) for text in ("one", "three", "two")]
  assert min(counts) > 70
  assert sum(counts) == 300


def test_prompts_of_labels():
  ops = 'prompt("cifar10", "cifar10")'
  texts = {
    _run(ops, batches.generator(0, i), label=6)["text"] for i in range(200)
  }
  assert "a blurry photo of a frog." in texts
  assert len(texts) == 18
  assert _run('prompt("pets")', label=1)["text"] == "american bulldog"
  assert _run('lower(key="x")', x=b"IN Bold")["x"] == "in bold"


@pytest.mark.parametrize(
  ("spec", "text", "message"),
  [
    ("tokenize(4)", "  ", "the text is empty"),
    ("tokenize(4)", b"\xff\xfe", "the text is not UTF-8"),
    ("tokenize(4)", ["a", "b"], "Choose one of several"),
    ("tokenize(1)", "a", "max_len=1 has no room"),
    ("tokenize(4.0)", "a", "max_len must be a whole number, got 4.0"),
    ("tokenize(4, pad_value=-1)", "a", "id, '<pad>' or '<eos>', got -1"),
    ("tokenize(4, model=None)", "a", "must be 'bytes' or a path, got None"),
    ('tokenize(4, "stick")', "a", "Unknown eos 'stick'. Did you mean 'sticky'"),
    ('tokenize(4, model="no.model")', "a", "there is no such file"),
    ('prompt("cifar")', "a", "Unknown class_names 'cifar'"),
    ('prompt("cifar10")', "a", "label 10 has no name: there are 10"),
    ('onehot(11, "label")|prompt("pets")', "a", r"\(11,\).*put prompt before"),
  ],
)
def test_bad_input(spec, text, message):
  with pytest.raises((ValueError, FileNotFoundError), match=message):
    _run(spec, text=text, label=10)


def test_shipped_names_and_templates():
  sizes = {"imagenet": 1000, "cifar10": 10, "cifar100": 100, "pets": 37}
  for name, size in sizes.items():
    # Twice missile, twice sunglasses.
    assert len(set(prompts.class_names(name))) >= size - 2
    assert len(prompts.class_names(name)) == size
  sizes = {
    "name": 1,
    "clip_best": 8,
    "clip_paper": 81,
    "cifar10": 18,
    "pets": 1,
  }
  for name, size in sizes.items():
    assert len(prompts.templates(name)) == size
  with pytest.raises(ValueError, match=r"'a photo' has no '\{\}'"):
    prompts.templates(["a photo"])


def test_fill():
  texts, classes = prompts.fill(
    ["Jack-o'-lantern", "bike, cycle"], ["A {}.", "{}"]
  )
  assert texts == [
    *("a jackolantern", "jackolantern"),
    *("a bike", "bike", "a cycle", "cycle"),
  ]
  assert classes == [0, 0, 1, 1, 1, 1]
  assert prompts.fill(["a, ,b,"], ["{}"]) == (["a", "b"], [0, 0])
  with pytest.raises(ValueError, match="'!!' has no letters"):
    prompts.fill(["plus", "!!"], ["{}"])
  assert prompts.fill(["!!"], ["{}"], canonical=False) == (["!!"], [0])
  assert prompts.canonicalize("Not_{}  this-{a}", "{}") == "not {} thisa"
