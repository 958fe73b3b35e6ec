"""Image classification with soft or hard labels."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from dpn import augment, errors, losses, mixing, trees
from dpn.models import vit
from dpn.tasks import base

MODELS = {"vit": vit.Model}
AUGMENT = ("pad", "pad_value", "flip_lr")
MIXUP = ("p", "cutmix_p", "switch_prob", "fold_in", "scope", "until_steps")


@dataclasses.dataclass(frozen=True)
class Classification(base.Task):
  """Cross entropy of a model's logits on `image` and `labels`.

  A low `init_head_bias` makes the sigmoid loss start small when there are many
  classes. For the options of mixup and CutMix see `mixing.mixup_or_cutmix`;
  `config.mixup.until_steps` ends both. With `config.augment`, images are first
  shifted by up to `pad` pixels, with `pad_value` where nothing is, and half of
  them mirrored if `flip_lr`.
  """

  config_keys = (
    *("model_name", "model", "num_classes", "init_head_bias"),
    *("loss", "mixup", "augment"),
  )

  model: nn.Module  # images → (logits, out)
  loss: str = "sigmoid_xent"  # see `losses.get`
  pad: int = 0
  pad_value: float = 0.0  # in the units that the model sees
  flip_lr: bool = False
  mixup_p: float = 0.0
  mixup_groups: int = 1
  cutmix_p: float = 0.0
  switch_prob: float = 0.5
  mixup_until: int | None = None  # the step from which on nothing is mixed
  mixes: bool | jax.Array = True  # whether anything is in this step
  init_head_bias: float | None = None

  def __post_init__(self):
    losses.get(self.loss)

  @classmethod
  def from_config(cls, config, *, batch_shards=1):
    model_name = config.get("model_name", "vit")
    errors.check_known("model_name", model_name, MODELS)
    if not config.get("num_classes"):
      raise ValueError(
        "config.num_classes is missing; set it to the number of classes, the "
        "same as in the onehot op of config.input.pp."
      )
    mixup = dict(config.get("mixup") or {})
    for key in mixup:
      errors.check_known("key in config.mixup:", key, MIXUP)
    shifts = dict(config.get("augment") or {})
    for key in shifts:
      errors.check_known("key in config.augment:", key, AUGMENT)
    groups = {"global": 1, "device": batch_shards}
    scope = mixup.get("scope", "global")
    errors.check_known("mixup.scope", scope, groups)
    if mixup.get("fold_in") is not None:
      raise ValueError(
        f"mixup.fold_in={mixup['fold_in']!r} is not supported: one mixing "
        "weight serves the whole batch. Set it to None."
      )
    model_kw = dict(config.get("model") or {})
    return cls(
      model=MODELS[model_name](config["num_classes"], **model_kw),
      loss=config.get("loss", "sigmoid_xent"),
      **shifts,
      mixup_p=mixup.get("p") or 0.0,
      mixup_groups=groups[scope],
      cutmix_p=mixup.get("cutmix_p") or 0.0,
      switch_prob=mixup.get("switch_prob", 0.5),
      mixup_until=mixup.get("until_steps"),
      init_head_bias=config.get("init_head_bias"),
    )

  def init(self, rng, batch):
    for key in ("image", "labels"):
      if key not in batch:
        raise ValueError(
          f"The examples have {', '.join(sorted(batch))}, but no {key!r}. "
          "Let config.input.pp make it, and name it in keep(...); labels come "
          'from onehot(…, key="label", key_result="labels").'
        )
    variables = self.model.init(rng, batch["image"])
    if self.init_head_bias is not None:
      head = variables["params"]["head"]
      head["bias"] = jnp.full_like(head["bias"], self.init_head_bias)
    return variables

  def at(self, step):
    if self.mixup_until is None:
      return self
    return dataclasses.replace(self, mixes=step < self.mixup_until)

  def augment(self, rng, batch):
    image = batch["image"]
    if self.pad or self.flip_lr:
      rng, shift_rng, flip_rng = jax.random.split(rng, 3)
      if self.pad:
        shift = augment.random_shift
        image = shift(shift_rng, image, self.pad, self.pad_value)
      if self.flip_lr:
        image = augment.random_flip_lr(flip_rng, image)
    mixed = mixing.mixup_or_cutmix(
      rng,
      image,
      batch["labels"],
      mixup_p=self.mixup_p,
      cutmix_p=self.cutmix_p,
      switch_prob=self.switch_prob,
      groups=self.mixup_groups,
    )
    own = image, batch["labels"]
    if self.mixes is not True:
      mixed = jax.tree.map(lambda x, y: jnp.where(self.mixes, x, y), mixed, own)
    return {**batch, "image": mixed[0], "labels": mixed[1]}

  def measure(self, variables, batch, *, rng=None):
    if rng is None:
      (logits, _), state = self._predict(variables, batch), {}
    else:
      augment_rng, model_rng = jax.random.split(rng)
      batch = self.augment(augment_rng, batch)
      (logits, _), state = self.model.apply(
        variables,
        batch["image"],
        train=True,
        rngs={"dropout": model_rng},
        mutable=[name for name in variables if name != "params"],
      )
    return {"loss": losses.get(self.loss)(logits, batch["labels"])}, state

  def predict_fns(self):
    return {"predict": self._predict, **super().predict_fns()}

  def _predict(self, variables, batch):
    return self.model.apply(variables, batch["image"])  # (logits, out)

  def model_options(self):
    return vit.options(self.model)

  def grad_norms(self, grads):
    """Returns the norms of the embedding and of each block.

    They are those of Figure 2 of arXiv 2302.01327; blocks looped or scanned.
    """
    norms = {"embedding": trees.l2(grads["embedding"])}
    blocks = grads["Transformer"]
    if "encoderblock" in blocks:
      per_block = jax.vmap(trees.l2)(blocks["encoderblock"])  # (depth,)
    else:
      depth = sum(name.startswith("encoderblock_") for name in blocks)
      per_block = [trees.l2(blocks[f"encoderblock_{i}"]) for i in range(depth)]
    return norms | {f"block{i:02d}": norm for i, norm in enumerate(per_block)}
