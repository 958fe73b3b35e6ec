"""Command lines that take a config: its flag, and errors without tracebacks."""

import ast
import io
import re
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import ml_collections
from absl import app, flags, logging
from ml_collections import config_flags

from dpn import errors, host_memory, registry, trees

EXPECTED = (ValueError, OSError, errors.NonFiniteError, errors.EvaluatorError)
flags.disclaim_key_flags()  # so that --help shows them as the command's own


class _Config:
  """The value of --config, a ConfigDict once flags are parsed; None without."""

  name = "config"
  value: ml_collections.ConfigDict | None = None


_CONFIG = _Config()


def define_config() -> _Config:
  """Defines --config, --traceback and --trust; returns the first."""
  flags.DEFINE_bool("traceback", False, "Print the traceback of an error.")
  flags.DEFINE_string(
    "config",
    None,
    "Path of a config file, with its arguments after a colon. --config.lr=0.1 "
    "sets a field, --config.model.depth=2 one of a section; =None unsets one.",
  )
  flags.DEFINE_string(
    "trust", "", "Modules that files may name: mypkg,other.norms."
  )
  return _CONFIG


def load_config(path: str) -> ml_collections.ConfigDict:
  """Returns the config of a file, "<path>" or "<path>:<arguments>".

  Raises ValueError unless it consists of what the run's config.json can hold.
  """
  path, *arg = path.split(":", 1)
  module = runpy.run_path(path)
  if "get_config" not in module:
    raise ValueError(f"{path} has no function get_config.")
  try:
    config = module["get_config"](*arg)
    values = trees.flatten(config.to_dict())
  except (KeyError, AttributeError, TypeError) as e:
    raise ValueError(f"{path}: {type(e).__name__}: {e}.") from e
  for name, value in values.items():
    if not isinstance(value, str | int | float):
      raise ValueError(
        f"{path}: config.{name.replace('/', '.')} is {value!r}, expected text, "
        "a number, or a list or dictionary of these; of a dtype the name, as "
        "in 'bfloat16'."
      )
  return config


def with_fields(
  config: ml_collections.ConfigDict, words: Sequence[str]
) -> list[str]:
  """Sets the config fields that a command line names; returns its other words.

  Any field may be set; trainers.config_keys refuses unknown ones.
  """
  words = _prepare(config, words)
  parsed = flags.FlagValues()
  config_flags.DEFINE_config_dict(
    "config",
    config,
    flag_values=parsed,
    lock_config=False,
    accept_new_attributes=True,
    sys_argv=words,
  )
  return parsed(["", *words], known_only=True)[1:]


def _prepare(config, words: Sequence[str]) -> list[str]:
  """Sets what ml_collections cannot; returns the words that are left for it.

  ml_collections accepts new fields only in sections that exist, None only where
  nothing was set, and no value where None is, which rules out
  `--config.wandb.project=p`, `--config.total_epochs=None` and `--config.wd=0.1`
  after `config.wd = None`. It takes neither lists nor a value of another kind
  than the field's, though config.schedule, for example, is a section or a list.
  """
  left = []
  for word in words:
    match = re.match(r"--config((?:\.\w+)*)\.(\w+)(=None$|=|$)", word)
    section, path = config, "--config"
    for key in match[1].split(".")[1:] if match else ():
      path += f".{key}"
      if section.get(key) is None:
        _set(section, key, ml_collections.ConfigDict())
      section = section[key]
      if not isinstance(section, ml_collections.ConfigDict):
        raise ValueError(
          f"{word}: {key} is a {type(section).__name__} in this config, and no "
          f"section. Set all of it: {path}='{section}', for example."
        )
    if match and match[3] == "=None" and match[1] == ".evals":
      errors.check_known("evaluator in config.evals:", match[2], section)
      with section.unlocked():
        del section[match[2]]
    elif match and match[3] == "=None":
      _set(section, match[2], None)
    elif match and _changes_kind(section.get(match[2]), word):
      _set(section, match[2], literal(word.partition("=")[2]))
    else:
      if match and section.get(match[2], "") is None:
        _forget(section, match[2])
      left.append(word)
  return left


def _forget(section, key):
  """Removes a None, unless it has a type: it could become nothing else."""
  if section.get_type(key) is type(None):
    with section.unlocked():
      del section[key]


def literal(text: str) -> Any:
  """Returns the value in `--config.field=value`: what Python reads, or text."""
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return text


def _changes_kind(there, word):
  """Returns whether a flag replaces a whole value by one of another kind."""
  value = literal(word.partition("=")[2])
  section = isinstance(there, ml_collections.ConfigDict)
  if isinstance(value, list | tuple | dict):
    return not isinstance(there, tuple) and not (
      section and isinstance(value, dict)
    )
  # One file in place of one for each tower.
  if section and word.startswith("--config.model_init="):
    return True
  return "=" in word and isinstance(there, list)


def _set(section, key, value):
  with section.unlocked(), section.ignore_type():
    section[key] = value


def run(
  main: Callable[..., None],
  required: Sequence[str] = ("config",),
  optional: Sequence[str] = (),
):
  """Parses flags and runs `main`; shows only the message of EXPECTED errors.

  The flags `required` must be given. `main` gets the `optional` arguments,
  which are positional.
  """

  def guarded(argv):
    if isinstance(sys.stdout, io.TextIOWrapper):  # Latin-1 has no "…"
      sys.stdout.reconfigure(errors="backslashreplace")
    if len(given := argv[1:]) > len(optional):
      known = " ".join(["flags", *(f"and [{name}]" for name in optional)])
      fail(f"unexpected argument {given[-1]!r}; expected {known} only.")
    if not flags.FLAGS["verbosity"].present:
      logging.set_verbosity(logging.WARNING)  # libraries tell a lot at INFO
    if not flags.FLAGS.traceback:
      # Errors in Orbax's threads are raised again, and then reported in a line.
      logging.get_absl_handler().addFilter(
        lambda record: not (record.exc_info and "orbax" in record.pathname)
      )
    try:
      host_memory.check_limit()
      main(*given)
    except EXPECTED as e:
      fail(e)

  flags.mark_flags_as_required(required)
  app.run(guarded, flags_parser=_parse_flags)


def _parse_flags(argv):
  """Reads flags and the config, if there is one; returns other arguments."""
  try:
    # Flags that set a config's fields are known only once it is loaded.
    try:
      program, *words = flags.FLAGS(argv, known_only=True)
    except SystemExit:
      sys.exit(0)  # --help has been shown, which absl counts as a failure
    registry.trust(flags.FLAGS.trust)  # a config may read a run's config
    if path := flags.FLAGS.config:
      _CONFIG.value = load_config(path)
      words = with_fields(_CONFIG.value, words)
    return flags.FLAGS([program, *words])
  except flags.UnrecognizedFlagError as e:
    if _CONFIG.value and e.flagname in _CONFIG.value:
      fail(f"{e} It is a field of the config: --config.{e.flagname}=…")
    fail(e)
  except (flags.Error, ValueError, OSError) as e:
    fail(e)


def fail(error: BaseException | str):
  """Ends the process with an error's message, after its traceback if asked."""
  if isinstance(error, BaseException):
    if "--traceback" in sys.argv:  # flags may not be parsed yet
      traceback.print_exception(error)
    error = f"{error}\n(--traceback shows where it comes from.)"
  sys.exit(errors.line(error))
