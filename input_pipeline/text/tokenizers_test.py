"""Tokenizers against ids that their authors' code or papers give."""

import gzip

import pytest

from dpn.input_pipeline.text import tokenizers

MERGES = (
  *("#version: 0.2", "t h", "th e</w>", "a n", "an d</w>", "c a", "ca t</w>"),
  *("d o", "do g</w>", "Ã ©</w>", "Ã ©", "1 2</w>"),
)
# From the example in the README of BERT, whose uncased vocabulary has this
# letter, too: it has no lower case.
PIECES = (
  *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##aff", "##able", "hello", "!"),
  "ℝ",
)


def test_bytes():
  made = tokenizers.make("bytes")
  assert made.encode("aé") == [101, 199, 173]
  assert made.decode([2, 101, 199, 173, 1, 101, 0]) == "aé"
  assert made.decode([101, 199, 0, 0]) == "a\ufffd"  # cut off within a letter
  assert (made.vocab_size, made.pad, made.eos, made.bos) == (260, 0, 1, 2)


def test_clip(tmp_path):
  """Ids that the SimpleTokenizer in OpenAI's code gives with these merges."""
  pytest.importorskip("tokenizers")
  path = tmp_path / "bpe.txt.gz"
  path.write_bytes(gzip.compress("\n".join(MERGES).encode()))
  made = tokenizers.make(str(path))
  assert made.vocab_size == 525
  assert (made.bos, made.eos) == (523, 524)
  for text, ids in {
    "the cat and the dog": [513, 517, 515, 513, 519],
    "The  CAT's café, 12 dogs!?": [
      *(513, 517, 6, 338, 516, 69, 520, 267, 272, 273, 518, 70, 338, 0, 286)
    ],
    "it's  don't": [72, 339, 6, 338, 518, 333, 6, 339],
  }.items():
    assert made.encode(text) == ids
  ids = [made.bos, *made.encode("The  CAT's café, dog"), made.eos, 0, 0]
  assert made.decode(ids) == "the cat 's café , dog"


def test_wordpiece(tmp_path):
  pytest.importorskip("tokenizers")
  path = tmp_path / "vocab.txt"
  path.write_text("\n".join(PIECES))
  made = tokenizers.make(str(path))
  assert made.encode("Hello unaffable!") == [7, 4, 5, 6, 8]
  assert made.encode("able ℝ") == [1, 9]
  assert made.decode([2, 7, 4, 5, 6, 8, 1, 3, 0]) == "hello unaffable! [UNK]"
  assert (made.bos, made.eos, made.pad, made.vocab_size) == (2, 3, 0, 10)


def test_a_trained_sentencepiece_model(tmp_path):
  library = pytest.importorskip("sentencepiece")
  texts = [
    f"latin letter {x} with {y}" for x in "abcdefgh" for y in ("dot", "bar")
  ]
  paths = [str(tmp_path / f"{i}.model") for i in range(2)]
  for path in paths:
    tokenizers.train(texts, 60, path)
  first, second = map(tokenizers.make, paths)
  assert first.sha256 == second.sha256
  assert len(first.sha256) == 64
  assert (first.pad, first.eos, first.bos) == (0, 1, None)
  text = "latin letter b with dot"
  ids = first.encode(text)
  assert library.SentencePieceProcessor(paths[0]).DecodeIds(ids) == text
  assert first.decode([*ids, 1, 0, 0]) == text
  assert max(ids) < first.vocab_size <= 60


@pytest.mark.parametrize(
  ("file", "content", "error", "message"),
  [
    ("c4_en", None, FileNotFoundError, "c4_en is the file gs://t5-data"),
    ("x.txt", None, FileNotFoundError, "no such file. Expected the name"),
    ("x.json", b"{}", ValueError, "not a known kind of vocabulary: expected"),
    ("x.txt", b"a\nb", ValueError, "is not a vocabulary of its kind: '.CLS.'"),
    (
      "x.txt.gz",
      gzip.compress(b"", mtime=0),
      ValueError,
      "expected two pieces in every",
    ),
    (
      "x.txt.gz",
      b"a b",
      ValueError,
      "is not a vocabulary of its kind: Not a gz",
    ),
    ("x.model", b"abc", ValueError, "is not a vocabulary of its kind"),
  ],
)
def test_wrong_files(tmp_path, monkeypatch, file, content, error, message):
  pytest.importorskip("tokenizers")
  pytest.importorskip("sentencepiece")
  monkeypatch.chdir(tmp_path)
  if content is not None:
    (tmp_path / file).write_bytes(content)
  with pytest.raises(error, match=message):
    tokenizers.make(file)
