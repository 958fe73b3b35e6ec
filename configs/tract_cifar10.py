r"""Dual PatchNorm on CIFAR-10, in the setting of TrAct's comparison.

Figure 7 of arXiv 2410.23970.

  python -m trainers.train --workdir W --config configs/tract_cifar10.py:\
stem_ln=none,stem=tract,data=cifar10,data_dir=/path/to/tfds
  python -m scripts.sweep --seeds_together --out runs/tract --config \
    configs/tract_cifar10.py:data=cifar10,data_dir=/path/to/tfds

Arguments: stem_ln, stem (patch or tract), epochs (100, 200, 400 or 800, whose
learning rates were tuned for a plain ViT), on_device (data and augmentation on
a GPU), seed, data, data_dir, runlocal. As a sweep: stems (none, dpn and
pre_no_learnable, their patch norm; TrAct joins them), epochs, seeds (5),
on_device, data, data_dir.

Expected: dpn and pre_no_learnable a little above none up to 400 epochs, and not
after 800; TrAct above all, but for dpn after 200; the paper prints no numbers.
Cost: 1.3e16 FLOP a run of 100 epochs.

Unknown: the augmentation; here crops after padding by 4 black pixels, and
flips.

Differs from the model's code, omihub777/ViT-CIFAR: no weight decay, which there
is 5e-5 and part of the gradient that Adam sees; logits of attention are divided
by the root of a head's width, there of the model's; one GELU in an MLP, there
another behind it; positions and class token start smaller than there, N(0, 1).
"""

import ml_collections

from dpn.configs import common, lape_cifar

RATES = {100: 10**-3, 200: 10**-3.2, 400: 10**-3.5, 800: 10**-3.5}
END = 1e-5


def get_config(arg=None):
  """Returns the config; see the module's docstring for `arg`."""
  arg = common.parse_arg(
    arg,
    stem_ln="dpn",
    stem="patch",
    epochs=100,
    on_device=True,
    seed=0,
    data="cifar10",
    data_dir="",
    runlocal=False,
  )
  config = ml_collections.ConfigDict()
  config.seed = arg.seed
  config.total_epochs = arg.epochs
  config.num_classes = 10
  config.loss = "softmax_xent"

  place = {"data_dir": arg.data_dir} if arg.data_dir else {}
  get_data = lambda split: {"name": arg.data, "split": split, **place}
  pixels = lape_cifar.RECIPES[config.num_classes]
  mean, std = (tuple(255 * x for x in pixels[key]) for key in ("mean", "std"))
  clean = common.labels_tail(
    config.num_classes, pixels=f"vgg_value_range({mean}, {std})"
  )
  smooth = clean.replace('"labels")|', '"labels", on=0.91, off=0.01)|')
  crop = '|pad_to_shape((40, 40, None), where="both")|random_crop(32)|flip_lr'
  config.input = {}
  config.input.data = get_data("train")
  config.input.batch_size = 128
  config.input.pp = f"decode|resize(32){'' if arg.on_device else crop}{smooth}"
  if arg.on_device:
    config.input.on_device = True
    black = tuple(-m / s for m, s in zip(mean, std, strict=True))
    config.augment = {"pad": 4, "pad_value": black, "flip_lr": True}

  config.log_training_steps = 200
  config.ckpt_steps = 5000
  config.log_grad_depth = True

  config.model_name = "vit"
  config.model = {
    **common.MODEL_KW,
    "width": 384,
    "depth": 7,
    "mlp_dim": 384,
    "num_heads": 12,
    "patch_size": (4, 4),
    "pool_type": "tok",
    "posemb_join_kw": {"cls": True},
    "gelu": "exact",
    "head_zeroinit": False,
    "scan": True,
    "stem_ln": arg.stem_ln,
    "stem": arg.stem,
  }

  config.optax_name = "scale_by_adam"
  config.lr = common.choose("epochs", arg.epochs, RATES)
  config.schedule = {
    "warmup_epochs": 5,
    "decay_type": "cosine",
    "end": END / config.lr,
  }

  config.evals = {}
  config.evals.test = {
    "type": "classification",
    "data": get_data("test"),
    "pp_fn": f"decode|resize(32){clean}",
    "loss_name": config.loss,
    "log_percent": 0.1,
    "cache_final": True,
  }

  config.table = common.table(
    f"TrAct's setting, {arg.epochs} epochs",
    "384x7/4",
    arg.stem_ln,
    "test/prec@1",
  )

  if arg.runlocal:
    common.runlocal(config)
  return config


def sweep(arg=None):
  """Returns an arm for each stem, and TrAct; see the module's docstring."""
  arg = common.parse_sweep(
    arg,
    stems=("none", "dpn", "pre_no_learnable"),
    epochs=100,
    seeds=5,
    on_device=True,
    data="cifar10",
    data_dir="",
  )
  arms = {stem_ln: {"stem_ln": stem_ln} for stem_ln in arg.stems}
  arms["tract"] = {"stem_ln": "none", "stem": "tract"}
  return [
    arm
    for name, given in arms.items()
    for arm in common.arms(
      arg,
      name,
      **given,
      epochs=arg.epochs,
      on_device=arg.on_device,
      data=arg.data,
      **({"data_dir": arg.data_dir} if arg.data_dir else {}),
    )
  ]
