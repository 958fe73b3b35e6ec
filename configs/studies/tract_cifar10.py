r"""Dual PatchNorm on CIFAR-10, in the setting of TrAct's comparison.

Figure 7 of arXiv 2410.23970.

  python -m trainers.train --workdir W \
    --config configs/studies/tract_cifar10.py:\
stem_ln=none,stem=tract,data=cifar10,data_dir=/path/to/tfds
  python -m scripts.sweep --seeds_together --out runs/tract --config \
    configs/studies/tract_cifar10.py:data=cifar10,data_dir=/path/to/tfds

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

from dpn.configs import common, lape_cifar

RATES = {100: 10**-3, 200: 10**-3.2, 400: 10**-3.5, 800: 10**-3.5}
END = 1e-5
MODEL = {
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
}


@common.recipe(
  stem_ln="dpn",
  stem="patch",
  epochs=100,
  on_device=True,
  data="cifar10",
  data_dir="",
)
def get_config(arg):
  lr = common.choose("epochs", arg.epochs, RATES)
  source = lambda split: common.source(arg.data, split, arg.data_dir)
  mean, std = lape_cifar.mean_std(10)
  pixels = f"vgg_value_range({mean}, {std})"
  smooth = common.labels_tail(10, pixels=pixels, smoothing=0.1)
  crop = '|pad_to_shape((40, 40, None), where="both")|random_crop(32)|flip_lr'
  on_device = {"on_device": True}
  black = tuple(-m / s for m, s in zip(mean, std, strict=True))
  augment = {"augment": {"pad": 4, "pad_value": black, "flip_lr": True}}
  if arg.on_device:
    crop = ""
  else:
    on_device = augment = {}
  return {
    "total_epochs": arg.epochs,
    "num_classes": 10,
    "loss": "softmax_xent",
    "input": {
      "data": source("train"),
      "batch_size": 128,
      "pp": f"decode|resize(32){crop}{smooth}",
      **on_device,
    },
    **augment,
    **common.LOGS,
    "log_training_steps": 200,
    "ckpt_steps": 5000,
    **common.vit(arg.stem_ln, stem=arg.stem, **MODEL),
    "optax_name": "scale_by_adam",
    "lr": lr,
    "schedule": {"warmup_epochs": 5, "decay_type": "cosine", "end": END / lr},
    "evals": {
      "test": common.classification(
        source("test"),
        f"decode|resize(32){common.labels_tail(10, pixels=pixels)}",
        "softmax_xent",
        log_percent=0.1,
        cache_final=True,
      )
    },
    "table": common.table(
      f"TrAct's setting, {arg.epochs} epochs",
      *("384x7/4", arg.stem_ln, "test/prec@1"),
    ),
  }


sweep = common.sweep(
  "{arm}",
  arms=lambda arg: {
    **{stem_ln: {"stem_ln": stem_ln} for stem_ln in arg.stems},
    "tract": {"stem_ln": "none", "stem": "tract"},
  },
  stems=("none", "dpn", "pre_no_learnable"),
  seeds=5,
  epochs=100,
  on_device=True,
  data="cifar10",
  data_dir="",
)
