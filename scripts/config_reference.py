"""Writes the reference of all config fields, docs/config.md, from the code.

  python -m scripts.config_reference -o docs/config.md

Each field is described where it is defined: in `dpn.trainers.config_keys`, in
`dpn.input_pipeline.pipeline.KEYS`, and in the docstrings and comments of
models, tasks, evaluators, sources and ops.
"""

import dataclasses
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dpn.tasks
from dpn import augment, losses, mixing, optim, registry, schedules, stems
from dpn.evaluators import base as evaluators
from dpn.input_pipeline import pipeline, pp, sources
from dpn.models import compact, stem, text, two_towers, vit, vit5
from dpn.scripts.results import output
from dpn.trainers import config_keys

# "  name: what it is", and its further lines, which are indented more.
_ENTRY = re.compile(r"^  ([\w<>]+): ((?:.+\n?)(?: {4,}.+\n?)*)", re.MULTILINE)
_RESULTS = re.compile(r"^(?:Returns|Raises):$", re.MULTILINE)
_SECTION = re.compile(r"^(?:Args|Attributes|Returns|Raises):$", re.MULTILINE)
# "  name: type = default  # what it is", in the source of a class.
_COMMENT = re.compile(r"^  (\w+): .*  # (.+)$", re.MULTILINE)
_INTRO = """# Config fields

Written by `python -m scripts.config_reference -o docs/config.md` from the code;
a test compares the two. Keys and names are big_vision's where it has them, and
so are the defaults of models, optimizers and schedules; but evaluators skip
step 0 unless `skip_first` is False, and without a `ckpt` period there are
checkpoints all the same. An unknown key is an error that names the nearest
known one. What may be an import path of your own, `package.module:attribute`,
is in [extending.md](extending.md).
"""


def reference() -> str:
  """Returns the page, as Markdown."""
  parts = [_INTRO, *_training(), *_tasks(), *_model(), *_optimizer()]
  parts += ["## Evaluators: `config.evals.<name>`\n"]
  parts += ["Every section has these:\n"]
  parts += [_fields(_described(evaluators.from_config))]
  for name in evaluators.TYPES:
    found = evaluators.find(name)
    parts += [f"### `{name}`\n", _prose(found), _keys(found)]
  parts += ["## Sources: `data.name`\n", _body(sources), "\n"]
  ops = [(_call(n, op), _first_line(op)) for n, op in sorted(pp.OPS.items())]
  parts += ["## Preprocessing ops: `pp`\n", _table(("op", "what"), ops)]
  return _escaped("\n".join(parts))


def _escaped(page) -> str:
  """Returns Markdown where <name> outside of code is not taken for HTML."""
  pieces = page.split("`")
  pieces[::2] = [piece.replace("<", "&lt;") for piece in pieces[::2]]
  return "`".join(pieces)


def _training():
  units = _names(f"_{unit}" for unit in schedules.UNITS)
  durations = {f"{k}_…": of for k, of in config_keys.DURATIONS.items()}
  return (
    *("## Training\n", _fields(config_keys.FIELDS)),
    *(f"Durations end in one of {units}:\n", _fields(durations)),
    "Of `model_load`; of a model with towers, `<tower>_load_kw` has these for "
    "one of them:\n",
    _fields(config_keys.MODEL_LOAD),
    *("Accepted and ignored:\n", _fields(config_keys.IGNORED_KEYS)),
    *("## Training data: `config.input`\n", _fields(pipeline.KEYS)),
    *("Accepted and ignored:\n", _fields(pipeline.IGNORED_KEYS)),
  )


def _docs(cls):
  return {f.name: f.metadata["doc"] for f in dataclasses.fields(cls)}


def _tasks():
  parts = ["## Tasks: `config.task`\n"]
  for name, task in dpn.tasks.TASKS.items():
    reads = f"It reads {_names(task.config_keys)}.\n"
    parts += [f"### `{name}`\n", _prose(task), reads]
  parts += ["### `augment` of a classification\n"]
  parts += [_fields(_docs(augment.Augment))]
  parts += ["### `mixup` of a classification\n", _fields(_docs(mixing.Mixup))]
  return [*parts, "### `loss` of a classification\n", _choices(losses.LOSSES)]


def _model():
  words = {
    f"{word}`, `stem={kw['stem']}": stem.STEM_LN[kw["stem_ln"]]
    for word, kw in stems.WORDS.items()
  }
  parts = [
    "## Vision Transformer: `config.model`\n",
    f"`variant` is a size and a patch, such as `B/16`: {_names(vit.VARIANTS)}. "
    f"For small images there are {_names(compact.VARIANTS)}; with other norms, "
    f"registers and rotary positions {_names(vit5.VARIANTS)}. Other options "
    "replace those of the variant.\n",
    _options(vit.Config),
    "### `stem_ln`\n",
    _table(
      ("name", "before the embedding", "after it"),
      [_stem_row(name, spec) for name, spec in (stem.STEM_LN | words).items()],
    ),
  ]
  for choice, table in vit.Config.CHOICES.items():
    parts += [f"### `{choice}`, with options in `{choice}_kw`\n"]
    parts.append(_choices(table))
  known = vit.Config.VALUES.items()
  values = [(f"`{option}`", _names(names)) for option, names in known]
  parts += ["### Options that are a name\n", _table(("option", "is"), values)]
  parts += ["## Two towers: `config.model` of `contrastive`\n"]
  parts.append(_fields(_described(two_towers.Model)))
  parts += ["`text` is an encoder's options, as above, and these:\n"]
  return [*parts, _options(text.Config, only=text.Config.__annotations__)]


def _stem_row(name, spec):
  before = [*(["whitening"] if spec.whiten else []), *filter(None, [spec.ln0])]
  late = ", after the position embedding" if spec.ln1_after_posemb else ""
  return f"`{name}`", ", ".join(before), f"{spec.ln1 or ''}{late}"


def _optimizer():
  return (
    "## Optimizer and schedule\n",
    _fields(_described(optim)),
    "Optimizers besides those of optax:\n",
    _choices(optim.OPTIMIZERS),
    "### `schedule`\n",
    f"Options: {_defaults(schedules.learning_rate)}; `mult` stands for `base`. "
    "The durations are `warmup`, `cooldown`, `hold` and `every`.\n",
    _prose(schedules.learning_rate),
    "The decays, `decay_type`:\n",
    _choices(schedules.DECAYS),
  )


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  """Returns a Markdown table."""
  cells = [header, ["---"] * len(header), *rows]
  escaped = [[cell.replace("|", r"\|") for cell in row] for row in cells]
  lines = [f"| {' | '.join(row)} |" for row in escaped]
  return "\n".join([*lines, ""])


def _fields(meanings: Mapping[str, str]) -> str:
  rows = [(f"`{name}`", what) for name, what in meanings.items()]
  return _table(("field", "what"), rows)


def _names(names: Iterable[str]) -> str:
  return ", ".join(f"`{name}`" for name in names)


def _choices(table: Mapping[str, Any]) -> str:
  """Returns a table of choices, each with its options and their defaults."""
  rows = [(f"`{n}`", _defaults(of), _first_line(of)) for n, of in table.items()]
  return _table(("name", "options", "what"), rows)


def _defaults(function) -> str:
  parameters = inspect.signature(function).parameters
  known = {
    name: value
    for name, value in registry.defaults(function).items()
    if parameters[name].kind is not inspect.Parameter.POSITIONAL_ONLY
  }
  shown = {n: getattr(v, "__name__", repr(v)) for n, v in known.items()}
  return ", ".join(f"`{name}={value}`" for name, value in shown.items())


def _options(cls, only: Iterable[str] | None = None) -> str:
  """Returns a table of a model's options."""
  meanings = {}
  for base in reversed(cls.__mro__):
    meanings |= _described(base)
  rows = []
  for field in dataclasses.fields(cls):
    if only is None or field.name in only:
      value = {} if field.name.endswith("_kw") else field.default
      what = meanings.get(field.name, f"options of `{field.name[:-3]}`")
      rows.append((f"`{field.name}`", f"`{value!r}`", what))
  return _table(("option", "default", "what"), rows)


def _keys(cls) -> str:
  """Returns a table of an evaluator's keys, the fields of its class."""
  comments = {}
  for base in reversed(cls.__mro__[:-1]):
    comments |= dict(_COMMENT.findall(inspect.getsource(base)))
  rows = []
  for field in dataclasses.fields(cls):
    default = "needed"
    if field.name == "batch_size":
      default = "`config.input.batch_size`"
    elif field.default is not dataclasses.MISSING:
      default = f"`{field.default!r}`"
    elif field.default_factory is not dataclasses.MISSING:
      default = f"`{field.default_factory()!r}`"
    if field.name not in ("predict_fn", "mesh"):
      rows.append((f"`{field.name}`", default, comments.get(field.name, "")))
  return _table(("key", "default", "what"), rows)


def _described(thing) -> dict[str, str]:
  """Returns what a docstring says of fields or arguments, by name."""
  entries = _ENTRY.findall(_RESULTS.split(_doc(thing))[0])
  return {name: " ".join(what.split()) for name, what in entries}


def _doc(thing) -> str:
  """Returns a docstring; "" for a class that only inherits one."""
  return inspect.cleandoc(thing.__doc__ or "")


def _prose(thing) -> str:
  """Returns a docstring without its sections of arguments."""
  return _SECTION.split(_doc(thing))[0].strip() + "\n"


def _body(module) -> str:
  """Returns a module's docstring without its first line."""
  return inspect.getdoc(module).partition("\n\n")[2]


def _first_line(thing) -> str:
  thing = getattr(thing, "func", thing)
  return " ".join(_doc(thing).partition("\n\n")[0].split())


def _call(name, op) -> str:
  """Returns an op's call with its defaults, without keys such as `outkey`."""
  parameters = [
    parameter.replace(annotation=inspect.Parameter.empty)
    for parameter in inspect.signature(op).parameters.values()
    if parameter.name not in ("key", "inkey", "outkey")
  ]
  listed = re.sub(r"^\((.*)\)$", r"\1", str(inspect.Signature(parameters)))
  return f"`{name}({listed})`" if listed else f"`{name}`"


def main(argv: Sequence[str] | None = None):
  parser = output.parser(__doc__)
  output.add_output(parser)
  args = parser.parse_args(argv)
  with output.errors_in_a_line():
    output.write(args.output, reference())


if __name__ == "__main__":
  main()
