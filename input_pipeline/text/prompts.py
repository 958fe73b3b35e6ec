"""Class names and prompt templates for zero-shot classification.

They are data: `prompts.json` names the source and the licence of each.
"""

import functools
import json
import pathlib
import re
import string
from collections.abc import Sequence

from dpn import errors


@functools.cache
def _data():
  path = pathlib.Path(__file__).with_name("prompts.json")
  return json.loads(path.read_text("utf-8"))


def class_names(names: str | Sequence[str]) -> list[str]:
  """Returns the class names of a data set, in the order of its labels.

  Each may be several synonyms, separated by commas. `names` is a key in
  prompts.json, or the names themselves.
  """
  return _look_up("class_names", names)


def templates(names: str | Sequence[str]) -> list[str]:
  """Returns prompts with "{}" where the class's name belongs.

  `names` is a key in prompts.json, such as "name" for the plain name or
  "clip_best" for eight prompts, or the templates themselves.
  """
  found = _look_up("templates", names)
  if wrong := [x for x in found if "{}" not in x]:
    raise ValueError(
      f"The prompt template {wrong[0]!r} has no '{{}}' for the class's name."
    )
  return found


def _look_up(kind, names):
  if not isinstance(names, str):
    return list(names)
  known = _data()[kind]
  errors.check_known(kind, names, known)
  return known[names]["values"]


def canonicalize(text: str, keep: str = "") -> str:
  """Returns text in lower case, without punctuation and runs of spaces.

  This is as in big_vision's evaluators; underscores become spaces. `keep` is a
  string that stays, such as "{}" in a template.
  """
  text = text.replace("_", " ")
  remove = str.maketrans("", "", string.punctuation)
  parts = text.split(keep) if keep else [text]
  text = keep.join(part.translate(remove) for part in parts)
  return re.sub(r"\s+", " ", text).strip().lower()


def fill(
  names: Sequence[str], templates: Sequence[str], canonical: bool = True
) -> tuple[list[str], list[int]]:
  """Returns a text for every template and name, and the class of each text.

  All synonyms in a name are used; big_vision uses only the first. With
  `canonical`, names and templates go through `canonicalize`.
  """
  texts, classes, given = [], [], names
  if canonical:
    names = [canonicalize(name, ",") for name in names]
    templates = [canonicalize(template, "{}") for template in templates]
  for label, aliases in enumerate(names):
    found = [name.strip() for name in aliases.split(",") if name.strip()]
    if not found:
      raise ValueError(
        f"The class name {given[label]!r} has no letters: give another, or "
        "keep punctuation with canonicalize=False."
      )
    for name in found:
      texts += [template.replace("{}", name) for template in templates]
      classes += [label] * len(templates)
  return texts, classes
