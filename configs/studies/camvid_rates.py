r"""CamVid from scratch once more, each method at its own learning rate.

The study of docs/results/camvid.md, "Each method at its own rate".

  python -m trainers.train --workdir W --config \
    configs/studies/camvid_rates.py:method=dpn,data_dir=/path/to/tfds
  python -m scripts.sweep --out runs/camvid_rates/rates --config \
    configs/studies/camvid_rates.py:piece=rates,data_dir=/path/to/tfds

Arguments: method (one of those of configs/studies/photos.py), lr, test
(evaluates on the test images), seed, data, data_dir, runlocal. As a sweep:
piece (one of `PIECES`), data, data_dir; from (folder of the piece that tries
rates, after select_best); methods, lrs, seeds (not the piece's).

Recipe of configs/camvid.py. Expected: see the page.
"""

from dpn.configs import camvid, common
from dpn.configs.studies import photos

# Of the pixels of `train`, of 255.
MEAN, STD = (104.95, 108.35, 110.19), (76.98, 78.1, 76.99)
_METHODS = ("none", "none_standardized", "dpn", "dpn+patch_stats", "tract")
_PARTS = ("mean", "std", "stats_gain1", "stats_channels")
# As those of photos.py; `confirm_parts` needs lrs, that of dpn+patch_stats.
PIECES = {
  "rates": (_METHODS, 100, 1, {"lr": ("1e-3", "3e-3", "1e-2")}),
  "confirm": (_METHODS, 5, 10, {}),
  "confirm_parts": (tuple(f"dpn+patch_{part}" for part in _PARTS), 5, 5, {}),
}


@common.recipe(method="dpn", data="camvid", data_dir="", lr=3e-3, test=False)
def get_config(arg):
  chosen = common.choose("method", arg.method, photos.METHODS)
  given = {key: arg[key] for key in ("lr", "data", "data_dir", "seed")}
  config = camvid.get_config(stem_ln=chosen.stem_ln, **given)
  config.model.update(stem=chosen.stem, stem_kw=dict(chosen.stem_kw))
  change = lambda pp: pp.replace(
    "value_range(-1, 1)", photos.to_input(chosen.pixels, MEAN, STD)
  )
  config.input.pp = change(config.input.pp)
  for section in config.evals.values():
    section.pp_fn = change(section.pp_fn)
  recipe = "CamVid, own rates"
  if not arg.test:
    del config.evals["test"]
    recipe += f", lr {arg.lr:g}"
  config.table = common.table(
    recipe,
    config.table.arch,
    arg.method,
    f"{'test' if arg.test else 'val'}/miou",
  )
  return config


def sweep(arg=None):
  """Returns the arms of a piece, seed by seed; see the module's docstring."""
  return photos.arms(arg, PIECES, {"data": "camvid", "data_dir": ""})
