"""Keeps saves from leaking memory.

tensorstore (0.1.71 to 0.1.86) never frees the strings of the JSON that it
returns. Orbax asks for two kinds at each save: metrics, to log a rate (3.5 KB
and more), and a description of the folder for every array (0.3 KB each).
"""

import tensorstore

_described = tensorstore.KvStore.Spec.to_json


def stop():
  """Lets Orbax do without both, in this process."""
  tensorstore.experimental_collect_matching_metrics = lambda *unused: []
  tensorstore.KvStore.Spec.to_json = _describe


def _describe(spec: tensorstore.KvStore.Spec, **kw) -> dict:
  """Returns what `to_json` does, of a local folder without making JSON."""
  folder = {"driver": "file", "path": spec.path}
  if not kw and spec == tensorstore.KvStore.Spec(folder):
    return folder
  return _described(spec, **kw)
