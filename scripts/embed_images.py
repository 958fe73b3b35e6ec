"""Embeds the images of a data set with a locked tower, once for all epochs.

  python -m scripts.embed_images --config configs/mini_lit.py:init=T \
    --splits train,new_names,new_fonts --out E
  python -m trainers.train --config configs/mini_lit.py:embedded=E --workdir W

The config is one that trains with this tower (config.model_init) on the data
set config.input.data, of which the given splits are embedded. --pp preprocesses
the images and must not be random; by default it is `pp_img` of the first
evaluator that has one. The result is a data source, `embedded:E`, for
config.model.image_model = "precomputed". (arXiv 2111.07991: a locked tower
always embeds an image the same way, unless the image is augmented.)
"""

import json
import os
from collections.abc import Sequence

import numpy as np
from absl import flags

import dpn.tasks
from dpn import atomic, registry, schema, sharding
from dpn.evaluators import base as evaluators_base
from dpn.input_pipeline import pp, sources
from dpn.input_pipeline.sources import embedded
from dpn.scripts.evaluation import checkpoints
from dpn.trainers import build, cli, config_keys, restore
from dpn.weights import preprocessing


def embed(config, splits: Sequence[str], ops: str, out: str):
  """Writes the data source; see the module.

  Raises:
    ValueError, OSError: the config, the data or the checkpoint is wrong.
  """
  registry.trust_names(config)
  config_keys.check(config)
  pp.add_modules(config.get("pp_modules") or ())
  if drawn := [x.text for x in pp.make(ops).steps if x.declared.random]:
    raise ValueError(
      f"--pp={ops!r}: each image is embedded once, so nothing may be random. "
      f"Leave out {', '.join(drawn)}."
    )
  if parts := [split for split in splits if {*"[+"} & {*split}]:
    raise ValueError(
      f"--splits={','.join(parts)}: embed whole splits, train,test; slices and "
      "joined ones can be read, embedded:OUT with split='train[:50%]+test'."
    )
  name = config.input.data.name
  if not sources.kind_of(name)[0]:
    raise ValueError(
      f"config.input.data.name={name!r} is a class of your own, which "
      f"{embedded.SOURCE} may not name: convert the data first, with "
      "scripts.prepare_data."
    )
  if not config.get("model_init"):
    raise ValueError("config.model_init is missing: whose embeddings are they?")
  mesh = sharding.make_mesh(config.get("mesh") or [("data", -1)])
  task = dpn.tasks.make(config)
  if "img" not in task.towers:
    raise ValueError(
      f"config.task={config.get('task', 'classification')!r} has no tower of "
      "images, as contrastive has. Give a config such as configs/lit.py."
    )
  variables = restore.load_file(
    config.model_init,
    task,
    checkpoints.fresh(config, task, mesh),
    image_size=build.image_size(config),
    pixels=preprocessing.describe(ops)["pixels"],
    **(config.get("model_load") or {}),
  )
  evaluator = evaluators_base.Evaluator(
    task.predict_fns()["predict"], mesh=mesh, batch_size=config.input.batch_size
  )
  embed_batch = evaluator.jit(lambda v, b: evaluator.predict_fn(v, b)[0])
  data = {k: v for k, v in config.input.data.items() if k != "split"}
  os.makedirs(out, exist_ok=True)
  init = config.to_dict()["model_init"]
  tower = {"model_init": init, "pp": ops, "data": data}
  tower = json.loads(json.dumps(tower))  # as it is read back
  made_by = os.path.join(out, "tower.json")
  there = schema.read_json(made_by, dict) if os.path.exists(made_by) else tower
  if there != tower:
    raise ValueError(f"{out} has embeddings by {there}. Give another --out.")
  for split in splits:
    images = evaluator.open({**data, "split": split}, f'{ops}|keep("image")')
    [z] = evaluator.collect(embed_batch, variables, images)
    evaluators_base.check_finite(**{f"images of {split}": z})
    path = os.path.join(out, f"{split}.npy")
    with atomic.replacing(path) as file:
      np.save(file, z)
    atomic.write_json(made_by, tower)
    print(f"Wrote {path}: {z.shape[0]} embeddings of width {z.shape[1]}.")
  atomic.write_json(os.path.join(out, embedded.SOURCE), data)


def main():
  config = _CONFIG.value
  evals = (config.get("evals") or {}).values()
  found = [section["pp_img"] for section in evals if "pp_img" in section]
  ops = found[0] if found and _PP.value is None else _PP.value
  if ops is None:
    raise ValueError("Give --pp: no evaluator of the config has pp_img.")
  embed(config, _SPLITS.value, ops, _OUT.value)


if __name__ == "__main__":
  _CONFIG = cli.define_config()
  _SPLITS = flags.DEFINE_list("splits", ["train"], "Splits to embed.")
  _PP = flags.DEFINE_string("pp", None, "Preprocessing; see the module.")
  _OUT = flags.DEFINE_string("out", None, "Folder to write to.")
  cli.run(main, ["config", "out"])
