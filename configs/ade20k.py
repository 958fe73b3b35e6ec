r"""Semantic segmentation of ADE20K with a linear decoder: Table 5.

Appendix G of arXiv 2302.01327 (Dual PatchNorm).

  python -m trainers.train --workdir W --config \
    configs/ade20k.py:stem_ln=dpn,fraction=1/16,init=/path/params.safetensors
  python -m scripts.sweep --config configs/ade20k.py --out runs/table5

Arguments: variant, init (required: a model pretrained on ImageNet), stem_ln,
fraction (of the training images: 1/16, 1/8, 1/4, 1/2, 1), draw (which images
these are: first, as TFDS stores them, or for pairs a fixed draw; seed, a draw
by the run's seed), eval (single, multi), final_norm, seed, data (scene_parse150
from TFDS, or pairs:/path/ADEChallengeData2016), data_dir, runlocal (two steps
of 8 images, crops of 128 pixels). As a sweep: variant, stems, fractions, seeds
(10), draw, eval, data, data_dir, init, in which {stem_ln}, {variant} and {seed}
are filled in; its default is the runs that a sweep of configs/augreg_i1k.py
leaves. 100 runs.

Expected mIoU in percent, B/16, none → dpn: 1/16 27.3 → 28.0, 1/8 32.6 → 33.7,
1/4 36.9 → 38.0, 1/2 40.8 → 41.9, 1 45.6 → 46.1. Cost: 161,664 steps of 16
images; the paper gives no hours.

docs/segmentation.md compares Appendix G with this file, line by line. Unknown:
whether Table 5 is of one scale or of several with flips (eval=multi); which
images a fraction has; whether the final LayerNorm comes before the decoder (we
read out_with_norm=False as no); how the decoder starts (here at zero, as every
head in the paper's configs).
"""

from dpn.configs import common

STEPS = 128 * (20_210 // 16)  # for every fraction
FRACTIONS = {
  **{"1/16": "[:6.25%]", "1/8": "[:12.5%]", "1/4": "[:25%]", "1/2": "[:50%]"},
  "1": "",
}
SCALES = {"single": (1.0,), "multi": (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)}
DRAWS = ("first", "seed")


def segmentation_pp(
  decode: str, scale: tuple[int, int], crop: int, pixels: str, scales=(1.0,)
) -> tuple[str, list[str]]:
  """Returns preprocessing for training, and for evaluation at some scales.

  Args:
    decode: ops that make `image` and `labels`.
    scale: (long, short) side of an image at scale 1, in pixels.
    crop: pixels on a side of training's crops.
    pixels: op that converts uint8 pixels to the model's range.
    scales: to evaluate at.
  """
  keep = 'keep("image", "labels")'
  train = (
    f"{decode}|random_resize_with_mask({scale}, (0.5, 2.0))"
    f"|random_crop_with_mask({crop}, cat_max=0.75)|flip_with_mask"
    f"|photometric_distortion|{pixels}|pad_to_shape(({crop}, {crop}, 3))"
    f'|pad_to_shape(({crop}, {crop}), 255, key="labels")|{keep}'
  )
  sides = (round(s * min(scale)) for s in scales)
  return train, [
    f'{decode}|resize_small({side}, "bilinear")|{pixels}|{keep}'
    for side in sides
  ]


def evaluator(data: dict, pp: list[str], crop: int, **kw) -> dict:
  """Returns a section of `config.evals`: windows that overlap by a third."""
  return {
    "type": "segmentation",
    "data": data,
    "pp_fn": pp[0],
    "pp_scales": tuple(pp[1:]),
    "window": (crop, crop),
    "stride": (round(crop * 2 / 3),) * 2,
    **kw,
  }


@common.recipe(
  variant="B/16",
  init="",
  stem_ln="dpn",
  fraction="1",
  draw="first",
  eval="single",
  final_norm=False,
  data="scene_parse150",
  data_dir="",
)
def get_config(arg):
  common.need_init("ade20k", arg)
  split = common.choose("fraction", arg.fraction, FRACTIONS)
  common.choose("draw", arg.draw, dict.fromkeys(DRAWS))
  crop = 128 if arg.runlocal else 512
  pp_train, pp_eval = segmentation_pp(
    'decode|decode_labels(150, inkey="annotation", reduce_zero_label=True)',
    (4 * crop, crop),
    crop,
    "vgg_value_range",
    common.choose("eval", arg.eval, SCALES),
  )
  files = arg.data.startswith("pairs:")
  train, val = ("training", "validation") if files else ("train", "test")
  drawn = {"subset_seed": arg.seed} if arg.draw == "seed" else {}
  data = common.source(arg.data, f"{train}{split}", arg.data_dir) | drawn
  unused = () if arg.final_norm else ("Transformer/encoder_norm/.*",)
  recipe = "ADE20K"
  for option, default in (("eval", "single"), ("draw", "first")):
    recipe += f", {option} {arg[option]}" * (arg[option] != default)
  recipe += ", final norm" * arg.final_norm
  return {
    "task": "segmentation",
    "total_steps": STEPS,
    "num_classes": 150,
    "ignore_label": 255,
    "input": {"data": data, "batch_size": 16, "pp": pp_train},
    "log_training_steps": 50,
    "ckpt_steps": 1000,
    **common.vit(
      arg.stem_ln,
      variant=arg.variant,
      pool_type="tok",
      final_norm=arg.final_norm,
      stoch_depth=0.1,
    ),
    "model_init": arg.init,
    "model_load": {
      "dont_load": ("(head|pre_logits)/.*", *unused),
      "dont_check": ("pixels",),  # pretraining had -1 to 1
      "posemb_align_corners": False,
    },
    "optax_name": "scale_by_adam",
    "lr": 3e-5,
    "wd": 0.01 * 3e-5,
    # Scenic's mask goes by the number of dimensions: these are (heads, dim).
    "wd_mults": [*common.DECAY_TOKENS, (".*/(query|key|value)/bias$", 1.0)],
    "schedule": {"decay_type": "polynomial", "power": 0.9},
    "evals": {
      "val": evaluator(
        common.source(arg.data, val, arg.data_dir),
        *(pp_eval, crop),
        flip=arg.eval == "multi",
        log_percent=0.1,
      )
    },
    "table": common.table(
      *(recipe, arg.variant, arg.stem_ln, "val/miou"),
      train_fraction=arg.fraction,
    ),
  }


sweep = common.sweep(
  "{stem_ln}_{arm}",
  arms=lambda arg: {
    f.replace("/", "-"): {"fraction": f} for f in arg.fractions
  },
  variant="B/16",
  stems=("none", "dpn"),
  fractions=tuple(FRACTIONS),
  seeds=10,
  draw="first",
  eval="single",
  data="scene_parse150",
  data_dir="",
  init="runs/table1/{stem_ln}_{variant}-s0/params.safetensors",
)
