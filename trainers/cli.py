"""Command lines that take a config: its flag, and errors without tracebacks."""

import re
import sys
import traceback
from collections.abc import Callable, Sequence

import ml_collections
from absl import app, flags, logging
from ml_collections import config_flags

from dpn import metrics
from dpn.evaluators import base as evaluators_base

EXPECTED = (
  *(ValueError, OSError),
  *(metrics.NonFiniteError, evaluators_base.EvaluatorError),
)


def define_config() -> flags.FlagHolder:
  """Defines --config and --traceback; returns the former, a ConfigDict."""
  flags.DEFINE_bool("traceback", False, "Show where an error comes from.")
  holder = config_flags.DEFINE_config_file(
    "config",
    None,
    "Path of a config file, its arguments after a colon.",
    # Any field may be set; trainers.config_keys refuses the unknown ones.
    lock_config=False,
    accept_new_attributes=True,
  )
  parser = flags.FLAGS["config"].parser
  read = parser.parse
  parser.parse = lambda path: _with_sections(read(path), sys.argv[1:])
  return holder


def _with_sections(config, words: Sequence[str]):
  """Returns the config with every section that a flag sets a field of.

  ml_collections accepts new fields, but only in sections that are there:
  `--config.wandb.project=p` needs an empty `config.wandb`.
  """
  for word in words:
    if match := re.match(r"--config\.([\w.]+)\.\w+(=|$)", word):
      section = config
      for key in match[1].split("."):
        if not isinstance(section, ml_collections.ConfigDict):
          break
        if section.get(key) is None:
          with section.unlocked(), section.ignore_type():
            section[key] = ml_collections.ConfigDict()
        section = section[key]
  return config


def run(
  main: Callable[..., None],
  required: Sequence[str] = ("config",),
  optional: Sequence[str] = (),
):
  """Parses flags and runs `main`; an error of EXPECTED is its message alone.

  Args:
    main: what to run.
    required: names of flags that must be given.
    optional: names of arguments without a flag, which `main` is given.
  """

  def guarded(argv):
    if len(given := argv[1:]) > len(optional):
      known = " ".join(["flags", *(f"and [{name}]" for name in optional)])
      fail(f"unexpected argument {given[-1]!r}; expected {known} only.")
    if not flags.FLAGS["verbosity"].present:
      logging.set_verbosity(logging.WARNING)  # libraries tell a lot at INFO
    try:
      main(*given)
    except EXPECTED as e:
      fail(e)

  flags.mark_flags_as_required(required)
  app.run(guarded, flags_parser=_parse_flags)


def fail(error: BaseException | str):
  """Ends the process with the message alone, or all of it when asked."""
  if isinstance(error, BaseException):
    if "--traceback" in sys.argv:  # flags may not be parsed yet
      traceback.print_exception(error)
    error = f"{error}\n(--traceback shows where it comes from.)"
  sys.exit(f"Error: {error}")


def _parse_flags(argv):
  """Parses flags; what is wrong with a config is an error like any other."""
  try:
    return flags.FLAGS(argv)
  except flags.Error as e:
    fail(_config_error(e) or e)
  except (ValueError, OSError, KeyError, AttributeError) as e:
    fail(e)


def _config_error(error: BaseException | None) -> BaseException | None:
  """Returns what the config raised, which ml_collections wraps in text."""
  while error and "whilst parsing config file" not in str(error.__context__):
    error = error.__context__
  return error and error.__context__.__context__
