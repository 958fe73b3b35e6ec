"""25-shot linear probe of a checkpoint; nothing is trained.

The probe of Tables 1 (right) and 2 of arXiv 2302.01327 (Dual PatchNorm): ridge
regression in closed form on 25 images per class, mean of three draws.

  python -m scripts.evaluate --config configs/fewshot.py:variant=B/16 \
    --checkpoint /path/params.safetensors --evals fewshot --out probe.json

or, with an argument init=/path/params.safetensors and the trainer's logs,

  python -m trainers.train --workdir W \
    --config configs/fewshot.py:variant=B/16,init=/path/params.safetensors

Arguments: variant, stem_ln, rep_size (as the checkpoint was trained), pool
(tok, gap, …), res, datasets (imagenet, or small: six data sets, 1 to 25 shots),
init, runlocal (eight images). Classes of the checkpoint do not matter.

Expected: the tables in the docstrings of configs/augreg_i21k.py and jft.py.
Cost: embeds 65,000 + 50,000 images, 2 minutes at 1,000 images per second, and
solves three systems of the model's width.
"""

import ml_collections

from dpn.configs import common

DATASETS = ("imagenet", "small")


def get_config(arg=None):
  """Returns the config; see the module's docstring for `arg`."""
  arg = common.parse_arg(
    arg,
    variant="B/16",
    stem_ln="dpn",
    rep_size=False,
    pool="tok",
    res=224,
    datasets="imagenet",
    init="",
    runlocal=False,
  )
  config = ml_collections.ConfigDict()
  config.seed = 0
  config.num_classes = 1000
  config.loss = "sigmoid_xent"

  # Never read; training data tell the trainer the size of an image.
  config.input = {}
  config.input.data = {"name": "imagenet2012", "split": "validation"}
  config.input.batch_size = 1024
  config.input.pp = (
    f"decode|resize_small({arg.res * 8 // 7})|central_crop({arg.res})"
    + common.labels_tail(1000)
  )

  config.model_name = "vit"
  config.model_init = arg.init
  config.model_load = {
    "dont_load": ("head/kernel", "head/bias"),
    "dont_check": (),
  }
  config.model = {
    **common.MODEL_KW,
    "variant": arg.variant,
    "rep_size": arg.rep_size,
    "pool_type": arg.pool,
    "stem_ln": arg.stem_ln,
  }
  config.optax_name = "identity"
  config.lr = 0.0

  if arg.datasets not in DATASETS:
    raise common.nearest("datasets", arg.datasets, DATASETS)
  probe = (
    common.imagenet_fewshot(arg.res, log_steps=1)
    if arg.datasets == "imagenet"
    else common.get_fewshot_lsr(arg.res, arg.res * 8 // 7, log_steps=1)
  )
  config.evals = {"fewshot": probe}

  config.table = common.table(
    "few-shot", arg.variant, arg.stem_ln, "fewshot/imagenet_25shot"
  )

  if arg.runlocal:
    common.runlocal(config)
  config.total_steps = 0
  return config
