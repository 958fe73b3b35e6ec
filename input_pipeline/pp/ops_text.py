"""Ops on text. Names and arguments are big_vision's, where it has them.

Text is a string, or bytes in UTF-8. Empty text is an error, so that
config.input.on_error="skip" skips the example.
"""

from typing import NamedTuple

import numpy as np

from dpn import errors
from dpn.input_pipeline.pp import op
from dpn.input_pipeline.text import prompts, tokenizers


class Vocabulary(NamedTuple):
  """What token ids are from: how many there are, the file's hash, its path."""

  size: int
  sha256: str
  model: str


_EOS = ("none", "yes", "sticky")


@op.on_key(default="text")
def tokenize(
  max_len: int,
  eos: str = "sticky",
  model: str = tokenizers.BYTES,
  lower: bool = True,
  pad_value: int | str = "<pad>",
  add_bos: bool = False,
):
  """Turns text into int32 ids (max_len,), cut off or padded at the end.

  Args:
    max_len: how many ids.
    eos: whether an id marks the end of the text: "none"; "yes", unless it gets
      cut off; "sticky", always.
    model: which vocabulary, see `dpn.input_pipeline.text.tokenizers`.
    lower: lowercase before.
    pad_value: id to pad with; "<pad>" and "<eos>" are the vocabulary's own.
    add_bos: whether an id marks the beginning.

  Differs from big_vision: all of Unicode is lowercased, not ASCII only; the
  default vocabulary is bytes, not C4's English; the keys have defaults, the
  result is at `text`, not at `labels`, and there is no `sample_if_multi`.
  """
  errors.check_known("eos", eos, _EOS)
  if not _is_id(max_len):
    raise ValueError(f"max_len must be a whole number, got {max_len!r}.")
  tokenizer = tokenizers.make(model)
  own = {"<pad>": tokenizer.pad, "<eos>": tokenizer.eos}
  pad = own.get(pad_value, pad_value)
  for name, wanted, value in (
    ("eos", eos != "none", tokenizer.eos),
    ("bos", add_bos, tokenizer.bos),
    ("pad_value", True, pad),
  ):
    if wanted and value is None:
      raise ValueError(f"{model!r} has no id for {name}.")
  if not _is_id(pad):
    raise ValueError(
      f"pad_value must be an id, '<pad>' or '<eos>', got {pad_value!r}."
    )
  if max_len < 1 + add_bos + (eos != "none"):
    raise ValueError(f"max_len={max_len} has no room for text.")

  def apply(value):
    text = _text(value)
    ids = tokenizer.encode(text.lower() if lower else text)
    ids = [tokenizer.bos] * add_bos + ids + [tokenizer.eos] * (eos != "none")
    if eos == "sticky":
      ids[max_len - 1 :] = ids[-1:] if len(ids) >= max_len else []
    result = np.full(max_len, pad, np.int32)
    result[: len(ids)] = ids[:max_len]
    return result

  size = max(tokenizer.vocab_size, pad + 1)
  apply.vocabulary = Vocabulary(size, tokenizer.sha256, model)
  return apply


def _is_id(value) -> bool:
  return type(value) is int and value >= 0


@op.on_key(default="text")
def bert_tokenize(max_len: int, vocab_path: str):
  """Turns text into BERT's ids: [CLS], then WordPiece, cut off or padded."""
  make = tokenize.__wrapped__
  return make(max_len, "none", vocab_path, lower=False, add_bos=True)


@op.on_key(default="text")
def lower():
  """Lowercases text."""
  return lambda value: _text(value).lower()


@op.declare()
def coco_captions(outkey: str = "captions"):
  """Takes COCO's captions out of their nested dictionary."""

  def apply(example, _):
    example[outkey] = op.get(op.get(example, "captions"), "text")
    return example

  return apply


@op.declare(random=True)
def prompt(
  names: str,
  templates: str = "name",
  inkey: str = "label",
  outkey: str = "text",
):
  """Writes a label as a caption: a random template around its class's name.

  `names` and `templates` are keys of `dpn.input_pipeline.text.prompts`:
  `prompt("cifar10", "cifar10")` gives "a blurry photo of a frog."
  """
  names, templates = prompts.class_names(names), prompts.templates(templates)

  def apply(example, rng):
    label = op.get(example, inkey)
    if np.ndim(label):
      raise ValueError(
        f"{inkey} has shape {np.shape(label)}, expected one number: put prompt "
        "before onehot."
      )
    label = int(label)
    if not 0 <= label < len(names):
      raise ValueError(f"label {label} has no name: there are {len(names)}.")
    template = templates[rng.integers(len(templates))]
    example[outkey] = template.replace("{}", names[label])
    return example

  return apply


def _text(value) -> str:
  """Returns a text as a string."""
  if isinstance(value, np.ndarray) and value.ndim == 0:
    value = value.item()
  if isinstance(value, bytes):
    try:
      value = value.decode()
    except UnicodeDecodeError as e:
      raise ValueError(f"the text is not UTF-8: {e}.") from e
  if not isinstance(value, str):
    raise ValueError(
      f"expected a text, got {type(value).__name__}. Choose one of several "
      'with choice(key="text") before; ids of tokens are no text.'
    )
  if not value.strip():
    raise ValueError("the text is empty.")
  return str(value)
