r"""Methods of docs/methods.md at tuned rates and about equal FLOPs.

  python -m trainers.train --workdir W --config configs/norm_zoo.py:\
data=cifar10,data_dir=/path/to/tfds,method=derf,optimizer=muon
  python -m scripts.sweep --out runs/zoo/rates --config \
    configs/norm_zoo.py:data=cifar10,data_dir=/path/to/tfds
  python -m scripts.select_best runs/zoo/rates
  python -m scripts.sweep --out runs/zoo/confirm --config \
    configs/norm_zoo.py:piece=confirm,from=runs/zoo/rates,\
data=cifar10,data_dir=/path/to/tfds
  python -m scripts.tables runs/zoo --table zoo

Arguments: method (one of `METHODS`), optimizer (adamw, muon), lr, data (a TFDS
name of ten classes, or digits, made by scripts/mini_data.py), data_dir, steps
(PRepBN's ramp follows them, not --config.total_steps), test (evaluates on the
test split, not on the last tenth of the training images), seed, runlocal. As a
sweep: piece (rates: each learning rate, with seed 100; confirm: seeds, each
method with its best rate), methods and optimizers (joined by a plus; all), lrs,
from, seeds, data, data_dir, steps.

Expected: no paper's numbers, as it trains for an epoch or two. A run of 600
steps takes half a minute on two cores; all methods with both optimizers, three
rates and three seeds are some 400 runs.
"""

from dpn.configs import common, mini

_NGPT = "dpn.models.ngpt"
# name → what differs from a plain ViT with LayerNorm, `base`.
METHODS = {
  "base": {},
  "dpn": {"stem_ln": "dpn"},
  "whiten": {"stem_ln": "whiten"},
  "whiten_init": {"weight_init": "whiten"},
  "rmsnorm": {"norm": "rmsnorm"},
  "centernorm": {"norm": "centernorm"},
  "seednorm": {"norm": "seednorm"},
  "bhyt": {"norm": "bhyt"},
  "dyt": {"norm": "dyt", "final_norm": "norm"},
  "dyt+dpn": {"norm": "dyt", "final_norm": "norm", "stem_ln": "dpn"},
  "derf": {"norm": "derf", "final_norm": "norm"},
  "derf+dpn": {"norm": "derf", "final_norm": "norm", "stem_ln": "dpn"},
  "qk_norm": {"qk_norm": "rmsnorm"},
  "layer_scale": {"layer_scale": 1e-4},
  "peri_ln": {"block_ln": "peri_ln", "stem_ln": "post_posemb"},
  "res_post": {"block_ln": "res_post", "head_zeroinit": False},  # or is stuck
  "normformer": {"block_ln": "normformer"},
  "sub_ln": {"block_ln": "sub_ln"},
  "lns": {"block_ln": "lns"},
  "mix_ln": {"block_ln": "mix_ln", "scan": False},
  "deepnorm": {"block_ln": "deepnorm"},
  "hybridnorm": {
    **{"block_ln": "hybridnorm"},
    **{"qk_norm": "rmsnorm", "v_norm": "rmsnorm"},
  },
  "keel": {"block_ln": "keel", "final_norm": False, "scan": False},
  "prepbn": {"norm": "prepbn", "final_norm": "norm"},
  "unifiednorm": {"norm": "unifiednorm", "final_norm": "norm"},
  "sigma_reparam": {
    **{"norm": "none", "final_norm": False, "weight_init": "deit"},
    "weight_norm": "sigma_reparam",
  },
  "ngpt": {
    **{"block_ln": f"{_NGPT}:Block", "stem_ln": f"{_NGPT}:STEM_LN"},
    **{"weight_init": f"{_NGPT}:INITS", "final_norm": False},
    "weight_norm": f"{_NGPT}:scaled_logits",
  },
  "registers": {"registers": 4},
  "swiglu": {"mlp": "swiglu", "mlp_dim": mini.MODEL["mlp_dim"] * 2 // 3},
  "rope": {"rope": "axial"},
  "tract": {"stem": "tract"},
  "hmlp": {"stem": "hmlp"},
  "vit_c": {"stem": "vit_c", "depth": mini.MODEL["depth"] - 1},
}
OPTIMIZERS = {"adamw": "scale_by_adam", "muon": "scale_by_muon"}
PIECES = {"rates": False, "confirm": True}  # whether with the best rates
LRS = ("3e-4", "1e-3", "3e-3")


@common.recipe(
  method="base", optimizer="adamw", lr=1e-3, **mini.SHARED, test=False
)
def get_config(arg):
  model = {"stem_ln": "none", **mini.MODEL}
  model |= common.choose("method", arg.method, METHODS)
  tx = common.choose("optimizer", arg.optimizer, OPTIMIZERS)
  if model.get("norm") == "prepbn":
    # A tenth with LayerNorm, and the last tenth with what is evaluated.
    warmup = arg.steps // 10
    ramp = max(1, arg.steps - 2 * warmup)
    model["norm_kw"] = {"warmup": warmup, "steps": ramp}
  ngpt = arg.method == "ngpt"
  held_out = "test" if arg.test else "train[90%:]"
  evaluated = "test" if arg.test else "minival"
  name = f"Norm zoo, {mini.NAMES.get(arg.data, arg.data)}, {arg.optimizer}"
  table = common.table(
    name if arg.test else f"{name}, lr {arg.lr:g}",
    mini.ARCH,
    "none" if arg.method == "base" else arg.method,
    f"{evaluated}/prec@1",
  )
  return {
    **mini.fields(
      *(arg, "train[:90%]", evaluated, held_out),
      log_percent=1.0,
      cache_final=False,
    ),
    "log_training_steps": 20,
    **common.vit(**model),
    "optax_name": tx,
    **({"projection": f"{_NGPT}:project"} if ngpt else {}),
    "lr": arg.lr,
    "wd": 0.0 if ngpt else 0.1 * arg.lr,
    "table": table,
  }


def sweep(arg=None):
  """Returns the arms of a piece; see the module's docstring."""
  arg = common.parse_sweep(
    arg,
    piece="rates",
    methods=tuple(METHODS),
    optimizers=tuple(OPTIMIZERS),
    lrs=(),
    **{"from": ""},
    **mini.SHARED,
    seeds=0,
  )
  confirm = common.choose("piece", arg.piece, PIECES)
  if arg["from"] and (arg.lrs or not confirm):
    raise ValueError("from has the rates of piece=confirm, and lrs others.")
  arg.seeds = arg.seeds or (3 if confirm else 1)
  arms = []
  for optimizer in arg.optimizers:
    for method in common.names("method", arg.methods, METHODS):
      cell = f"{method} {optimizer}"
      found = {"lr": arg.lrs or LRS}
      if confirm and not arg.lrs:
        found = common.chosen(arg["from"], cell)
      arms += common.grid(
        arg,
        "{method}_{optimizer}_lr{lr}",
        first_seed=0 if confirm else 100,
        cell="{method} {optimizer}",
        candidate=lambda given: "lr={lr}".format(**given),
        method=method,
        optimizer=optimizer,
        test=confirm,
        **{name: arg[name] for name in mini.SHARED},
        **found,
      )
  # Seed by seed, so that an unfinished sweep has pairs to compare.
  return sorted(arms, key=lambda arm: arm["seed"])
