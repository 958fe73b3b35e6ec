r"""Photographs from scratch: whether Dual PatchNorm gains, and why.

The study of docs/results/photos.md, which explains every choice.

  python -m scripts.photo_sets imagenette CHECKOUT DIR
  python -m trainers.train --workdir W --config \
    configs/studies/photos.py:data=imagenette,data_dir=DIR,method=dpn
  python -m scripts.sweep --out runs/photos/imagenette/rates --config \
    configs/studies/photos.py:piece=rates,data=imagenette,data_dir=DIR

Arguments: data (one of `SETS`), data_dir (folder of its .npz file), method (one
of `METHODS`), lr, embedding (factor of the patch embedding's rate), epochs (the
set's), test (evaluates on the test images, as they are and corrupted), seed,
runlocal. As a sweep: piece (one of `PIECES`), data, data_dir, epochs; from
(folder of a piece that tries rates, after select_best); methods, lrs, seeds
(not the piece's).

Expected: see the page. Cost: 1e14 FLOP a run of 30 epochs of Imagenette. Those
of tiny_imagenet, 2e16, need a GPU.
"""

import os
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from dpn.configs import common


class Setting(NamedTuple):
  """What is told apart in a set, and how models learn it.

  `mean` and `std` are those of the pixels of `train`, of 255, as
  scripts.photo_sets prints them.
  """

  classes: int
  mean: tuple[float, ...]
  std: tuple[float, ...]
  names: tuple[str, ...] | None = None  # of the classes
  epochs: int = 30
  arch: str = "128x6/16"  # width x depth / patch
  num_heads: int = 4
  crop: int = 112


_OBJECTS = (
  *("tench", "English springer", "cassette player", "chain saw", "church"),
  *("French horn", "garbage truck", "petrol pump", "golf ball", "parachute"),
)
_SCENES = ("buildings", "forest", "glacier", "mountain", "sea", "street")
SETS = {
  "imagenette": Setting(
    10, (117.98, 116.78, 109.73), (70.62, 69.81, 75.6), _OBJECTS
  ),
  "scenes": Setting(
    6, (109.95, 116.79, 115.52), (66.39, 65.76, 74.05), _SCENES
  ),
  "grocery": Setting(
    81, (135.48, 101.18, 65.27), (61.47, 55.73, 51.79), epochs=60
  ),
  # A model of Ti's size; patches of 8 x 8 are 64 tokens.
  "tiny_imagenet": Setting(
    200,
    (122.43, 114.25, 101.37),
    (70.5, 68.58, 71.82),
    epochs=100,
    arch="192x12/8",
    num_heads=3,
    crop=64,
  ),
}


class Method(NamedTuple):
  """What a model is given, and how it embeds that; pixels as in `to_input`."""

  stem_ln: str = "none"
  stem: str = "patch"
  pixels: str = "range"
  stem_kw: Mapping = MappingProxyType({})


def _stats(**stem_kw) -> Method:
  return Method("dpn", "patch_stats", stem_kw=stem_kw)


METHODS = {
  "none": Method(),
  "pre": Method("pre"),
  "post": Method("post"),
  "dpn": Method("dpn"),
  "dpn+patch_stats": _stats(),
  # Parts of it, and another start, for CamVid.
  "dpn+patch_mean": _stats(statistics="mean"),
  "dpn+patch_std": _stats(statistics="std"),
  "dpn+patch_stats_gain1": _stats(init_gain=1.0),
  "dpn+patch_stats_channels": _stats(per_channel=True),
  "none+patch_stats": Method(stem="patch_stats"),
  "tract": Method(stem="tract"),
  "none_scaled": Method(pixels="scaled"),
  "none_standardized": Method(pixels="standardized"),
  "tract_standardized": Method(stem="tract", pixels="standardized"),
}
_PAIR = ("none", "dpn")
_MAIN = (*_PAIR, "dpn+patch_stats")
_SCALE = ("none_scaled", "none_standardized")
_OTHERS = ("tract", "pre", "post", "none+patch_stats")
_LRS = ("3e-4", "1e-3", "3e-3")
# name → methods, first seed, number of seeds, and what is tried; in other
# pieces methods have the rates that were chosen.
PIECES = {
  "rates": (_MAIN, 100, 1, {"lr": _LRS}),
  "rates_scale": (_SCALE, 100, 1, {"lr": _LRS}),
  "rates_others": (_OTHERS, 100, 1, {"lr": _LRS}),
  "embedding": (_PAIR, 100, 2, {"embedding": ("0.3", "1", "3", "10")}),
  "confirm": (_MAIN, 0, 5, {}),
  "confirm_scale": (_SCALE, 0, 5, {}),
  "confirm_others": (_OTHERS, 0, 5, {}),
  "confirm_embedding": (_PAIR, 0, 5, {}),
  "confirm_more": (_MAIN, 5, 5, {}),
}


@common.recipe(
  method="dpn",
  data="imagenette",
  data_dir="",
  lr=1e-3,
  embedding=1.0,
  epochs=0,
  test=False,
)
def get_config(arg):
  chosen = common.choose("method", arg.method, METHODS)
  known = common.choose("data", arg.data, SETS)
  width, depth, patch = map(int, re.split("[x/]", known.arch))
  file = os.path.join(arg.data_dir, f"{arg.data}.npz")
  source = lambda split: common.source(f"arrays:{file}", split)
  pixels = to_input(chosen.pixels, known.mean, known.std)
  tail = common.labels_tail(known.classes, pixels=pixels)
  evaluator = lambda split, share, middle="", **kw: common.classification(
    source(split),
    f"central_crop({known.crop}){middle}{tail}",
    "softmax_xent",
    log_percent=share,
    **kw,
  )
  evals = {"minival": evaluator("minival", 0.25, cache_final=True)}
  if arg.test:
    evals["test"] = evaluator("test", 1.0, cache_final=False)
    corrupted = evaluator("test[:20%]", 1.0, "|corrupt", type="corruptions")
    evals["corruptions"] = corrupted
  recipe, method = f"Photographs, {arg.data}", arg.method
  if not arg.test:
    recipe += f", lr {arg.lr:g}, embedding {arg.embedding:g}"
  elif arg.embedding != 1:
    method += f"+embedding{arg.embedding:g}"
  return {
    "total_epochs": arg.epochs or known.epochs,
    "num_classes": known.classes,
    **({"class_names": known.names} if known.names else {}),
    "loss": "softmax_xent",
    "input": {
      "data": source("train"),
      "batch_size": 128,
      "pp": f"inception_crop({known.crop})|flip_lr{tail}",
    },
    "log_training_percent": 0.02,
    "ckpt_steps": 500,
    "log_grad_depth": True,
    **common.vit(
      chosen.stem_ln,
      width=width,
      depth=depth,
      mlp_dim=4 * width,
      num_heads=known.num_heads,
      patch_size=(patch, patch),
      pool_type="tok",
      scan=True,
      stem=chosen.stem,
      stem_kw=dict(chosen.stem_kw),
    ),
    **common.ADAM,
    "lr": arg.lr,
    "lr_mults": [("embedding/.*", arg.embedding)],
    "wd": 0.1 * arg.lr,
    "schedule": common.WARMUP_COSINE,
    "evals": evals,
    "table": common.table(
      recipe, known.arch, method, f"{'test' if arg.test else 'minival'}/prec@1"
    ),
  }


def to_input(kind: str, mean: tuple[float, ...], std: tuple[float, ...]) -> str:
  """Returns the op that changes uint8 pixels to the model's input.

  Args:
    kind: range, from -1 to 1; scaled, these by a factor, so that the mean of
      their squares is 1, as LayerNorm makes it; or standardized by channel.
    mean: of each channel, of 255.
    std: the same.
  """
  if kind == "standardized":
    return f"vgg_value_range({mean}, {std})"
  if kind == "range":
    return "value_range(-1, 1)"
  pairs = zip(mean, std, strict=True)
  squares = [(m / 127.5 - 1) ** 2 + (s / 127.5) ** 2 for m, s in pairs]
  top = (sum(squares) / 3) ** -0.5
  return f"value_range({-top:.4f}, {top:.4f})"


def sweep(arg=None):
  """Returns the arms of a piece, seed by seed; see the module's docstring."""
  same = {"data": "imagenette", "data_dir": "", "epochs": 0}
  return arms(
    arg, PIECES, same, "{method}_lr{lr}_emb{embedding}", {"embedding": "1"}
  )


def arms(
  arg: str | None,
  pieces: Mapping[str, tuple],
  same: Mapping,
  name: str = "{method}_lr{lr}",
  usual: Mapping[str, str] | None = None,
) -> list[dict]:
  """Returns the arms of a study's piece, seed by seed.

  Args:
    arg: of sweep().
    pieces: see `PIECES`.
    same: further arguments of the config, with their defaults.
    name: pattern of the arms' names.
    usual: what is tried beside the rate, in pieces that do not.
  """
  usual = usual or {}
  arg = common.parse_sweep(
    arg, piece="rates", **same, **{"from": ""}, methods=(), lrs=(), seeds=0
  )
  methods, first, count, tried = common.choose("piece", arg.piece, pieces)
  arg.seeds = arg.seeds or count
  if arg["from"] and (arg.lrs or "lr" in tried):
    raise ValueError("from has the rates; leave out lrs, or piece=rates.")
  if arg.lrs:
    tried = tried | {"lr": arg.lrs}
  found = []
  for method in common.names("method", arg.methods, METHODS) or methods:
    chosen = arg["from"] or "lr" not in tried
    rates = common.chosen(arg["from"], method) if chosen else {}
    found += common.grid(
      arg,
      name,
      first_seed=first,
      cell="{method}",
      candidate=lambda given: ",".join(
        f"{key}={given[key]}" for key in ("lr", *usual)
      ),
      method=method,
      test=arg.piece.startswith("confirm"),
      **{key: arg[key] for key in same},
      **usual | rates | tried,
    )
  # So that an unfinished sweep has pairs to compare.
  return sorted(found, key=lambda arm: arm["seed"])
