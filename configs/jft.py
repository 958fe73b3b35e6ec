r"""ViT with Dual PatchNorm on a large data set, as on JFT-4B.

Section 4.3 of arXiv 2302.01327 (Dual PatchNorm). JFT is not public: this is the
recipe, on a data set that you name.

  python -m trainers.train --workdir W --config configs/jft.py:\
variant=B/16,steps=220000,data=my_set,classes=29593
  python -m scripts.sweep --out runs/table2_left \
    --config configs/jft.py:data=my_set,classes=29593

Arguments: data (required: a TFDS name, folder:/path, …), classes (required),
split, label (key of the class or classes), variant (B/32, B/16, L/16), stem_ln,
steps (220000, 1100000), seed, runlocal (two steps of 8 images, of ImageNet-1k
unless you name others). As a sweep:
variants, stems, steps, seeds (1), and data, classes, split, label. Table 2
(right) goes on from there with configs/finetune_i1k.py.

Expected on JFT-4B, 25-shot top-1 on ImageNet (Table 2, left; none → dpn), 220k
steps: B/32 63.8 → 65.2, B/16 72.1 → 72.4, L/16 77.3 → 77.9; 1.1M steps: 70.7 →
71.1, 76.9 → 76.6, 80.9 → 81.4. Cost: steps of 4,096 images, 250 and 1,252
hours at 1,000 images per second; the paper gives no hours.

Known are the steps, the batch and that there is neither augmentation (beyond
crop and flip) nor mixup. Unknown: loss, optimizer, learning rate, weight decay,
schedule, head. They are here what they are in configs/augreg_i21k.py, with the
class token and the layer before the head of configs/augreg_i1k.py.
"""

from configs import augreg_i21k, common

VARIANTS = ("B/32", "B/16", "L/16")  # Table 2
DATA = {"data": "", "classes": 0, "split": "train", "label": "label"}
RUNLOCAL = {"data": "imagenet2012", "classes": 1000}


def get_config(arg=None):
  """Returns the config; see the module's docstring for `arg`."""
  arg = common.parse_arg(
    arg,
    variant="B/16",
    stem_ln="dpn",
    steps=220_000,
    **DATA,
    seed=0,
    runlocal=False,
  )
  if arg.runlocal and not arg.data:
    arg.update(RUNLOCAL)
  if not (arg.data and arg.classes):
    raise ValueError(
      "jft needs a data set, for JFT is not public: append data=NAME,classes=N "
      "to the config's arguments."
    )
  config = augreg_i21k.get_config(
    ",".join(f"{key}={value}" for key, value in arg.items())
  )
  config.input.pp = (
    "decode_jpeg_and_inception_crop(224)|flip_lr"
    + common.labels_tail(arg.classes, arg.label)
  )
  del config.mixup
  config.model.rep_size = True
  config.model.pool_type = "tok"
  config.table.recipe = "JFT"
  return config


def sweep(arg=None):
  """Returns the arms of Table 2 (left); see the module's docstring."""
  arg = common.parse_sweep(
    arg,
    variants=VARIANTS,
    stems=("none", "dpn"),
    steps=("220000", "1100000"),
    **DATA,
  )
  return augreg_i21k.arms(arg)
