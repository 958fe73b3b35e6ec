"""Tokenizers with one interface; vocabularies are files of your own.

`make` takes the name `bytes`, which needs no file, or a path to

- `….model`: a sentencepiece model, such as big_vision's c4_en, Gemma's, or one
  that scripts.prepare_data trained on the captions of a data set;
- `….txt`: BERT's WordPiece vocabulary, a piece per line;
- `….txt.gz`: CLIP's byte-pair merges, `bpe_simple_vocab_16e6.txt.gz`.

The last three need `pip install -e '.[text]'`.
"""

import dataclasses
import functools
import gzip
import hashlib
import io
import itertools
import os
import string
from collections.abc import Callable, Iterable

from dpn import atomic, damage, paths

BYTES = "bytes"
# The files that big_vision's names stand for.
KNOWN_FILES = {
  "c4_en": "gs://t5-data/vocabs/cc_en.32000/sentencepiece.model",
  "cc_all": "gs://t5-data/vocabs/cc_all.32000/sentencepiece.model",
  "mc4": "gs://t5-data/vocabs/mc4.250000.100extra/sentencepiece.model",
}


@dataclasses.dataclass(frozen=True)
class Tokenizer:
  """A vocabulary and how text is cut into pieces of it."""

  encode: Callable[[str], list[int]]  # returns ids without `bos` and `eos`
  join: Callable[[list[int]], str]  # from such ids to text
  vocab_size: int  # ids are below it
  bos: int | None  # id that begins a sentence, None if there is none
  eos: int | None  # id that ends it, or None
  pad: int | None  # id of padding, or None
  sha256: str = ""  # of the file; empty without one

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of ids, up to its end and without padding."""
    text = itertools.takewhile(lambda i: i != self.eos, map(int, ids))
    marks = (self.bos, self.pad)
    return self.join([
      i for i in text if i not in marks and 0 <= i < self.vocab_size
    ])  # fmt: skip


def make(model: str) -> Tokenizer:
  """Returns the tokenizer of a name or a path, see the module.

  FileNotFoundError if there is no such file; ValueError if it is not of the
  kind that its suffix says, or the library that reads it is not installed.
  """
  if model == BYTES:
    return _BYTES
  if not isinstance(model, str):
    raise ValueError(f"model must be {BYTES!r} or a path, got {model!r}.")
  path = os.path.expanduser(model)
  if not os.path.isfile(path):
    hint = f"Expected the name {BYTES!r} or the path."
    if file := KNOWN_FILES.get(model):
      hint = f"{model} is the file {file}: give the path of a copy."
    raise FileNotFoundError(
      f"tokenize(model={model!r}): there is no such file. {hint}"
    )
  kinds = {".model": _sentencepiece, ".gz": _clip, ".txt": _wordpiece}
  suffix = os.path.splitext(path)[1]
  if suffix not in kinds:
    raise ValueError(
      f"tokenize(model={model!r}) is not a known kind of vocabulary: expected "
      "a sentencepiece .model, BERT's vocab.txt or CLIP's .txt.gz."
    )
  return _read(kinds[suffix], path, os.stat(path).st_mtime_ns)


@functools.lru_cache(16)
def _read(kind, path, _):
  content = paths.read(path)
  with damage.reading(path):
    try:
      made = kind(content)
    except ModuleNotFoundError as e:
      raise ValueError(
        f"Reading {path} needs {e.name}: pip install 'dual-patchnorm[text]'."
      ) from e
    except (OSError, ValueError, RuntimeError) as e:
      raise ValueError(f"{path} is not a vocabulary of its kind: {e}") from e
  sha256 = hashlib.sha256(content).hexdigest()
  return dataclasses.replace(made, sha256=sha256)


# Ids 0 to 3 are pad, eos, bos and unused, as in T5's ByT5 (arXiv 2105.13626)
# but for their order, which is big_vision's: padding with eos is pad_value=1.
_OFFSET = 4
_BYTES = Tokenizer(
  encode=lambda text: [_OFFSET + byte for byte in text.encode()],
  join=lambda ids: bytes(i - _OFFSET for i in ids if i >= _OFFSET).decode(
    errors="replace"
  ),
  vocab_size=256 + _OFFSET,
  pad=0,
  eos=1,
  bos=2,
)


def _sentencepiece(content):
  import sentencepiece

  model = sentencepiece.SentencePieceProcessor()
  if not model.LoadFromSerializedProto(content):
    raise ValueError("it cannot be parsed")
  ids = (model.bos_id(), model.eos_id(), model.pad_id())
  bos, eos, pad = (None if i < 0 else i for i in ids)
  size = model.GetPieceSize()
  return Tokenizer(model.EncodeAsIds, model.DecodeIds, size, bos, eos, pad)


def _wordpiece(content):
  import tokenizers

  pieces = content.decode().split("\n")
  ids = {p.strip(): i for i, p in enumerate(pieces) if p.strip()}
  marks = "[CLS]", "[SEP]", "[PAD]", "[UNK]"
  if missing := [p for p in marks if p not in ids]:
    raise ValueError(f"{missing[0]!r} is not in it, a piece per line")
  bos, eos, pad = (ids[p] for p in marks[:3])
  # ASCII alone: even uncased vocabularies have symbols such as the letter ℝ.
  capitals = set(string.ascii_uppercase)
  cased = any(capitals & set(p) for p in ids if not p.startswith("["))
  bert = tokenizers.BertWordPieceTokenizer(ids, lowercase=not cased)
  encode = lambda text: bert.encode(text, add_special_tokens=False).ids
  join = lambda ids: bert.decode(ids, skip_special_tokens=False)
  return Tokenizer(encode, join, max(ids.values()) + 1, bos, eos, pad)


# As in the code of arXiv 2103.00020: the vocabulary is the bytes, the bytes at
# the end of a word, the merges, and the two ends of a text.
_CLIP_MERGES = 49_152 - 256 - 2
_CLIP_WORDS = (
  r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d"
  r"|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"
)


def _clip(content):
  import tokenizers
  from tokenizers import decoders, models, normalizers, pre_tokenizers

  with gzip.open(io.BytesIO(content)) as file:
    text = file.read(2**24).decode()  # no more, in case of a bomb
  _, *lines = text.split("\n")
  merges = [tuple(x.split()) for x in lines[:_CLIP_MERGES] if x]
  if not merges or any(len(pair) != 2 for pair in merges):
    raise ValueError("expected two pieces in every line but the first")
  end = "</w>"
  letters = _letters()
  pieces = [*letters, *(x + end for x in letters), *map("".join, merges)]
  ends = ("<|startoftext|>", "<|endoftext|>")
  ids = {piece: i for i, piece in enumerate([*pieces, *ends])}
  model = models.BPE(
    ids, merges, end_of_word_suffix=end, continuing_subword_prefix=""
  )
  clip = tokenizers.Tokenizer(model)
  clip.normalizer = normalizers.Sequence([
    normalizers.NFC(),
    normalizers.Replace(tokenizers.Regex(r"\s+"), " "),
    normalizers.Lowercase(),
  ])  # fmt: skip
  clip.pre_tokenizer = pre_tokenizers.Sequence([
    pre_tokenizers.Split(tokenizers.Regex(_CLIP_WORDS), "removed", invert=True),
    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
  ])  # fmt: skip
  clip.decoder = decoders.ByteLevel()
  bos, eos = (ids[piece] for piece in ends)
  encode = lambda text: clip.encode(text, add_special_tokens=False).ids
  join = lambda ids: clip.decode(ids).replace(end, " ").strip()
  return Tokenizer(encode, join, len(ids), bos, eos, pad=0)


def _letters() -> list[str]:
  """Returns the printable letters of the bytes, in the order of CLIP's ids."""
  printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
  return [chr(x) for x in [*printable, *range(256, 512 - len(printable))]]


def train(texts: Iterable[str], vocab_size: int, path: str):
  """Trains a sentencepiece model on texts and writes it to `path`, a ".model".

  Its ids 0 to 2 are padding, end of sentence and unknown, as in T5 and in
  big_vision's c4_en. The same texts give the same file, with fewer pieces than
  `vocab_size` if the texts do not yield as many.
  """
  import sentencepiece

  written = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(texts),
      model_writer=written,
      vocab_size=vocab_size,
      hard_vocab_limit=False,
      character_coverage=1.0,
      pad_id=0,
      eos_id=1,
      unk_id=2,
      bos_id=-1,
      num_threads=1,
      minloglevel=2,
    )
  except RuntimeError as e:  # all of its errors
    raise ValueError(f"vocab_size={vocab_size} does not work: {e}") from e
  atomic.write(path, written.getvalue())
