r"""ViT with Dual PatchNorm on a large data set, as on JFT-4B.

Section 5.4 of arXiv 2302.01327 (Dual PatchNorm). JFT is not public: this is the
recipe, on a data set that you name.

  python -m trainers.train --workdir W --config configs/jft.py:\
variant=B/16,steps=220000,data=my_set,classes=29593
  python -m scripts.sweep --out runs/table2_left \
    --config configs/jft.py:data=my_set,classes=29593

Arguments: data (required: a TFDS name, folder:/path, …), classes (required),
split, label (key of the class or classes), variant (B/32, B/16, L/16), stem_ln,
steps (220000, 1100000), setup (zhai, augreg), pool (tok, map), seed, runlocal
(two steps of 8 images, of ImageNet-1k unless you name others). As a sweep:
variants, stems, steps, seeds (1), and data, classes, split, label, setup, pool.
Table 2 (right) goes on from there with configs/finetune_i1k.py.

Expected on JFT-4B, 25-shot top-1 on ImageNet (Table 2, left; none → dpn), 220k
steps: B/32 63.8 → 65.2, B/16 72.1 → 72.4, L/16 77.3 → 77.9; 1.1M steps: 70.7 →
71.1, 76.9 → 76.6, 80.9 → 81.4. Cost: steps of 4,096 images, 250 and 1,252
hours at 1,000 images per second; the paper gives no hours.

The paper gives the steps, the batch, and that there is neither augmentation
(beyond crop and flip) nor mixup. The rest is unknown; by default, it is the
recipe of arXiv 2106.04560 (Zhai et al.), cited by the paper for the data set,
as big_vision publishes it (proj/scaling_laws/train_vit_g): Adafactor, inverse
square root with 50,000 steps of cooldown, and the head's kernel decayed 100
times as much as the others. setup=augreg has the optimizer and
schedule of configs/augreg_i1k.py, without dropout and stochastic depth.

Unknown, too: the head. That recipe has pool=map; here it is the class token and
a layer before the head, because Appendices D and E load those.
"""

from dpn.configs import augreg_i21k, common

VARIANTS = ("B/32", "B/16", "L/16")  # Table 2
DATA = {"data": "", "classes": 0, "split": "train", "label": "label"}
READING = {"setup": "zhai", "pool": "tok"}  # of what is unknown
RUNLOCAL = {"data": "imagenet2012", "classes": 1000}
SETUPS = {
  "zhai": {
    "optax_name": "big_vision.scale_by_adafactor",
    "optax": {},
    "lr": 8e-4,
    "wd": 0.03 * 8e-4,
    "wd_mults": [(".*head/kernel", 100.0), (".*/kernel", 1.0)],
    "schedule": {
      "decay_type": "rsqrt",
      "timescale": 10_000,
      "warmup_steps": 10_000,
      "cooldown_steps": 50_000,
    },
  },
  "augreg": {},  # what configs/augreg_i21k.py has
}


@common.recipe(variant="B/16", stem_ln="dpn", steps=220_000, **READING, **DATA)
def get_config(arg):
  if arg.runlocal and not arg.data:
    arg.update(RUNLOCAL)
  if not (arg.data and arg.classes):
    raise ValueError(
      "jft needs a data set, for JFT is not public: append data=NAME,classes=N "
      "to the config's arguments."
    )
  setup = common.choose("setup", arg.setup, SETUPS)
  same = {k: v for k, v in arg.items() if k not in READING}
  config = augreg_i21k.get_config(**same)
  config.input.pp = (
    "decode_jpeg_and_inception_crop(224)|flip_lr"
    + common.labels_tail(arg.classes, arg.label)
  )
  del config.mixup
  config.model.rep_size = arg.pool == "tok"
  config.model.pool_type = arg.pool
  for key, value in setup.items():
    config[key] = value  # not update(), which would merge the optimizers
  others = [arg[key] for key, usual in READING.items() if arg[key] != usual]
  config.table.recipe = ", ".join(["JFT", *others])
  return config


sweep = common.sweep(
  "{stem_ln}_{variant}_{steps}",
  steps=("220000", "1100000"),
  variants=VARIANTS,
  stems=("none", "dpn"),
  **READING,
  **DATA,
)
