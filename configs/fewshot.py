"""25-shot linear probe of a checkpoint; nothing is trained.

The probe of Tables 1 (right) and 2 of arXiv 2302.01327 (Dual PatchNorm): ridge
regression in closed form on 25 images per class, mean of three draws.

  python -m scripts.evaluate --evals fewshot --out probe.json \
    --config configs/fewshot.py:variant=B/16,rep_size=True \
    --checkpoint /path/params.safetensors

or, with an argument init=/path/params.safetensors and the trainer's logs,

  python -m trainers.train --workdir W \
    --config configs/fewshot.py:variant=B/16,rep_size=True,init=/path/params…

Arguments: variant, stem_ln, rep_size and pool (tok, gap, …) as the checkpoint
was trained (configs/jft.py and, except for S/32, augreg_i1k.py have
rep_size=True, augreg_i21k.py has pool=gap), res, datasets (imagenet, or small:
six data sets, 1 to 25 shots), init, runlocal (eight images). The checkpoint's
classes do not matter.

Expected: the tables in the docstrings of configs/augreg_i21k.py and jft.py.
Cost: embeds 65,000 + 50,000 images, 2 minutes at 1,000 images per second, and
solves three systems of the model's width.
"""

from dpn.configs import common


@common.recipe(
  variant="B/16",
  stem_ln="dpn",
  rep_size=False,
  pool="tok",
  res=224,
  datasets="imagenet",
  init="",
)
def get_config(arg):
  resize = arg.res * 8 // 7
  probes = {
    "imagenet": common.imagenet_fewshot(arg.res, log_steps=1),
    "small": common.get_fewshot_lsr(arg.res, resize, log_steps=1),
  }
  metric = "fewshot/imagenet_25shot"  # small data sets fill no cell
  cell = common.table("few-shot", arg.variant, arg.stem_ln, metric)
  return {
    "total_steps": 0,
    "num_classes": 1000,
    "loss": "sigmoid_xent",
    # Never read, but it tells the trainer the size of an image.
    "input": {
      "data": common.source("imagenet2012", "validation"),
      "batch_size": 1024,
      "pp": f"decode|resize_small({resize})|central_crop({arg.res})"
      + common.labels_tail(1000),
    },
    "model_init": arg.init,
    "model_load": common.NEW_HEAD,
    **common.vit(
      arg.stem_ln,
      variant=arg.variant,
      rep_size=arg.rep_size,
      pool_type=arg.pool,
    ),
    "optax_name": "identity",
    "lr": 0.0,
    "evals": {"fewshot": common.choose("datasets", arg.datasets, probes)},
    **({"table": cell} if arg.datasets == "imagenet" else {}),
  }
