"""Words for `stem_ln`, in configs and models, that also choose the `stem`."""

from collections.abc import Mapping
from typing import Any

WORDS = {
  # Dual PatchNorm with each patch's mean and deviation: docs/patch_stats.md.
  "patch_stats": {"stem_ln": "dpn", "stem": "patch_stats"},
  "tract": {"stem_ln": "none", "stem": "tract"},  # arXiv 2410.23970
}


def spelled(options: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a model's options, with a word replaced by its two options.

  If there is a `stem`, `stem_ln` is not read as a word.
  """
  word = "" if options.get("stem") else str(options.get("stem_ln"))
  return {**options, **WORDS.get(word, {})}
