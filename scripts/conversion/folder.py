"""Writes a converted model: a file, or a folder that can be published."""

import io
import json
import os
import tempfile

import numpy as np

from dpn import atomic
from dpn.scripts.results import output
from dpn.weights import export, files, vit_params

_CARD = """\
---
library_name: {library}
pipeline_tag: {task}
tags:
- vision-transformer
{tags}---

# {name}

A Vision Transformer of {count:,} parameters{classes}.

## Use

{use}

## Images

{images}

## Model

Options of `dpn.models.vit.Model`, also in the metadata of `model.safetensors`:

```json
{options}
```

Not known to the converter, for you to fill in: the data it was trained on, its
accuracy, licence and authors.
"""
_USE = {
  "ours": "",
  "timm": """\
```python
import timm

model = timm.create_model("hf-hub:ORGANIZATION/{name}", pretrained=True)
```
""",
  "hf": """\
```python
import transformers

model = transformers.{architecture}.from_pretrained("ORGANIZATION/{name}")
```
""",
}
_OURS = """\
```python
from dpn.models import vit

model, variables, preprocess = vit.from_pretrained("ORGANIZATION/{name}")
```"""
_EXTENDED = """\
Its norms around the patch embedding have no place in that library's own model:
it is extended as docs/checkpoints.md of dual-patchnorm shows. Without them the
same file is another function.
"""


def check_target(target: str, to: str):
  """Raises an error if `target` has the wrong suffix for `to`, or exists."""
  suffix = os.path.splitext(target)[1]
  if suffix not in export.SUFFIXES[to]:
    names = (s or "no suffix (a folder)" for s in export.SUFFIXES[to])
    known = " or ".join(names)
    raise ValueError(
      f"{target!r} is no name for --to {to}: expected {known}, got "
      f"{suffix or 'none'!r}."
    )
  if os.path.lexists(target):
    raise FileExistsError(
      f"{target!r} exists and is never overwritten. Remove it, or give another "
      "name."
    )


def write(
  target: str, exported: export.Exported, to: str, model: vit_params.VitParams
):
  """Writes a file, or a folder with a model card if `target` has no suffix.

  Args:
    target: its path.
    exported: what to write.
    to: the library, one of `export.SUFFIXES`.
    model: what was converted.

  Raises:
    OSError: it cannot be written; nothing is left behind.
  """
  parent = os.path.dirname(os.path.abspath(target))
  os.makedirs(parent, exist_ok=True)
  if os.path.splitext(target)[1]:
    atomic.write(target, _bytes(target, exported))
    return
  temporary = tempfile.TemporaryDirectory
  with output.ensure_folder(parent), temporary(dir=parent) as scratch:
    folder = os.path.join(scratch, "model")
    os.mkdir(folder)
    file = os.path.join(folder, "model.safetensors")
    atomic.write(file, _bytes(file, exported))
    for name, value in exported.config.items():
      atomic.write_json(os.path.join(folder, name), value)
    name = os.path.basename(os.path.normpath(target))
    text = card(name, exported, to, model)
    atomic.write(os.path.join(folder, "README.md"), text.encode())
    os.rename(folder, target)


def card(
  name: str, exported: export.Exported, to: str, model: vit_params.VitParams
) -> str:
  """Returns the model card of a folder, as the Hugging Face hub shows it."""
  options = dict(model.options)
  classes = options["num_classes"]
  library = {"ours": "dual-patchnorm", "hf": "transformers"}.get(to, to)
  [architecture] = exported.config.get("config.json", {}).get(
    "architectures", [""]
  )
  use = _USE[to].format(name=name, architecture=architecture)
  added = ("pre", "dpn") if to == "timm" else ("pre", "post", "dpn")
  if to != "ours" and options["stem_ln"] in added:
    use = _EXTENDED
  return _CARD.format(
    **{"library": library, "name": name},
    task="image-classification" if classes else "image-feature-extraction",
    tags="- dual-patchnorm\n" if options["stem_ln"] == "dpn" else "",
    count=sum(np.size(x) for x in exported.arrays.values()),
    classes=f" for {classes} classes" if classes else "",
    use=f"{use}\n{_OURS.format(name=name)}".strip(),
    images=f"`{model.pp}`" if model.pp else f"{model.pixels or 'Unknown'}.",
    options=json.dumps(options, indent=2),
  )


def _bytes(target, exported):
  if not target.endswith(".npz"):
    arrays = {k: np.asarray(x, order="C") for k, x in exported.arrays.items()}
    return files.to_bytes(arrays, exported.metadata)
  buffer = io.BytesIO()
  said = np.array(json.dumps(exported.metadata))
  np.savez(buffer, **exported.arrays, metadata=said)
  return buffer.getvalue()
