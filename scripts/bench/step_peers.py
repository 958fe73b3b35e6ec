"""The training steps that scripts.bench_step times: ours, and others'.

Each function takes a `Setting` and returns a `Step` that is compiled and has
its data on the device: random images, labels of 1,000 classes, Adam with weight
decay, gradients clipped at norm 1. Nothing is imported before it is needed, so
that PyTorch may live in another environment than JAX.
"""

import dataclasses
import importlib
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

NUM_CLASSES = 1000
LR, WD, CLIP = 1e-3, 1e-4, 1.0
TIMM_SIZES = {"Ti": "tiny", "S": "small", "B": "base", "L": "large"}


@dataclasses.dataclass(frozen=True)
class Setting:
  """One model and how it is trained.

  Attributes:
    variant: such as "S/16".
    resolution: rows and columns of an image.
    batch_size: images of a step.
    dtype: of matrix products.
    stem_ln: see `dpn.models.stem`; ours only.
    scan: see `dpn.models.vit`.
    remat: its `remat_policy`.
    attn_impl: likewise; ours only.
  """

  variant: str = "S/16"
  resolution: int = 224
  batch_size: int = 16
  dtype: str = "float32"
  stem_ln: str = "none"
  scan: bool = False
  remat: str = "none"
  attn_impl: str = "auto"


@dataclasses.dataclass
class Step:
  """A compiled training step.

  Attributes:
    run: begins a step; returns what `wait` takes.
    wait: returns once that step is done.
    matmul: (size) → a function like `run`, multiplying two square matrices.
    compile_secs: how long it took to trace and compile.
    memory: () → the most bytes used so far.
    device: its kind.
    flops: of a step, by `dpn.flops`; None if unknown.
    peak: of the device in FLOP/s, by `dpn.flops`; None if unknown.
  """

  run: Callable[[], Any]
  wait: Callable[[Any], Any]
  matmul: Callable[[int], Callable[[], Any]]
  compile_secs: float
  memory: Callable[[], int]
  device: str
  flops: int | None = None
  peak: float | None = None


def ours(setting: Setting) -> Step:
  """Returns this codebase's step, see `trainer_step`."""
  config = _config(setting)
  config.model.stem_ln = setting.stem_ln
  config.model.attn_impl = setting.attn_impl
  return trainer_step(config, setting.resolution)[0]


def trainer_step(config: Any, resolution: int) -> tuple[Step, Any]:
  """Returns the step of a config, as trainers.train builds it.

  Args:
    config: of a run that classifies images; its data are not opened.
    resolution: rows and columns of an image.

  Returns:
    The step, and the compiled program that it runs.
  """
  import jax
  import numpy as np

  import dpn.tasks
  from dpn import flops, sharding
  from scripts import fake_data
  from trainers import build

  mesh = sharding.make_mesh()
  batch_size = config.input.batch_size
  spec = {
    "image": ((batch_size, resolution, resolution, 3), np.dtype("float32")),
    "labels": ((batch_size, config.num_classes), np.dtype("float32")),
  }
  task = dpn.tasks.make(config, batch_shards=mesh.size)
  begin = time.perf_counter()
  train_step = build.train_step(
    config, task, spec, mesh, data_size=fake_data.EXAMPLES
  )
  update = train_step.compile()
  compile_secs = time.perf_counter() - begin
  state = train_step.init(jax.random.key(0))
  run = _donating(update, state, fake_data.batch(train_step.batch_shapes))
  dtype = config.model.get("dtype_mm", "float32")
  step = _jax_step(run, dtype, compile_secs)
  peak = flops.peak(jax.devices()[0])
  step.peak = peak and peak * jax.device_count()
  step.flops = train_step.flops()
  return step, update


def big_vision(setting: Setting, folder: str) -> Step:
  """Returns big_vision's step, put together from a checkout of it.

  Its train.py needs TensorFlow; the model, the loss and the optimizer are its
  own, and jitted and donated as there, on the batch as ours.

  Args:
    setting: `stem_ln` and `attn_impl` do not matter.
    folder: of the checkout.

  Raises:
    OSError: it is not there.
  """
  import jax
  import jax.numpy as jnp

  _import_big_vision(folder)
  from big_vision import optax as bv_optax
  from big_vision.models import vit

  config = _config(setting)
  model = vit.Model(NUM_CLASSES, **config.model)
  rng = jax.random.key(0)
  shape = (setting.batch_size, setting.resolution, setting.resolution, 3)
  batch = {
    "image": jax.random.uniform(rng, shape),
    "labels": jax.random.uniform(rng, (setting.batch_size, NUM_CLASSES)),
  }

  def init(rng):
    return model.init(rng, jnp.zeros(shape, jnp.float32))["params"]

  tx, _ = bv_optax.make(
    config,
    jax.eval_shape(init, rng),
    sched_kw={
      "total_steps": config.total_steps,
      "batch_size": setting.batch_size,
      "data_size": 1_281_167,
    },
  )

  state = jax.jit(lambda rng: {"params": (p := init(rng)), "opt": tx.init(p)})(
    rng
  )
  update = jax.jit(_big_vision_update(model, tx, rng), donate_argnums=0)
  begin = time.perf_counter()
  compiled = update.lower(state, batch).compile()
  compile_secs = time.perf_counter() - begin
  run = _donating(compiled, state, batch)
  return _jax_step(run, setting.dtype, compile_secs)


def _big_vision_update(model, tx, rng):
  """Returns its function of a step, to be jitted."""
  import jax
  import optax
  from big_vision import optax as bv_optax
  from big_vision import utils

  def update(state, batch):
    count = bv_optax.get_count(state["opt"], jittable=True)
    _, dropout = jax.random.split(jax.random.fold_in(rng, count))

    def loss_fn(params):
      logits, _ = model.apply(
        {"params": params},
        batch["image"],
        train=True,
        rngs={"dropout": dropout},
      )
      return utils.softmax_xent(logits=logits, labels=batch["labels"])

    loss, grads = jax.value_and_grad(loss_fn)(state["params"])
    updates, opt = tx.update(grads, state["opt"], state["params"])
    params = optax.apply_updates(state["params"], updates)
    l2 = lambda tree: optax.tree.norm(tree)
    values = {"loss": loss, "l2_grads": l2(grads), "l2_params": l2(params)}
    return {"params": params, "opt": opt}, values | {"l2_updates": l2(updates)}

  return update


def timm(setting: Setting) -> Step:
  """Returns timm's step: torch.compile, AdamW, autocast below float32."""
  import timm
  import torch

  device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
  torch.set_float32_matmul_precision("high")  # as JAX does: TF32 on GPUs
  size, _, patch_size = setting.variant.partition("/")
  model = timm.create_model(
    f"vit_{TIMM_SIZES[size]}_patch16_224",
    img_size=setting.resolution,
    patch_size=int(patch_size),
    num_classes=NUM_CLASSES,
  ).to(device)
  optimizer = torch.optim.AdamW(
    model.parameters(), LR, weight_decay=WD, fused=True
  )
  shape = (setting.batch_size, 3, setting.resolution, setting.resolution)
  images = torch.rand(shape, device=device)
  labels = torch.rand((setting.batch_size, NUM_CLASSES), device=device)
  dtype = getattr(torch, setting.dtype)
  forward = torch.compile(model)

  def run():
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
      logits = forward(images)
    loss = torch.nn.functional.cross_entropy(logits.float(), labels)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad()
    if device.type == "cuda":
      event = torch.cuda.Event()
      event.record()
      return event
    return None

  def wait(event):
    if event:
      event.synchronize()

  def matmul(size):
    a = torch.rand((size, size), device=device).to(dtype)

    def multiply():
      a @ a
      if device.type == "cuda":
        torch.cuda.synchronize()

    return multiply

  begin = time.perf_counter()
  wait(run())
  name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
  memory = torch.cuda.max_memory_allocated if name != "cpu" else _host_memory
  secs = time.perf_counter() - begin
  return Step(run, wait, matmul, secs, memory, name)


def _config(setting):
  """Returns the config that ours and big_vision read."""
  model = {
    "variant": setting.variant,
    "pool_type": "tok",
    "scan": setting.scan,
    "remat_policy": setting.remat,
    "dtype_mm": setting.dtype,
  }
  return config_of(model, setting.batch_size)


def config_of(model: dict[str, Any], batch_size: int) -> Any:
  """Returns the config of a run with this `config.model`, without data."""
  import ml_collections

  return ml_collections.ConfigDict(
    {
      "num_classes": NUM_CLASSES,
      "loss": "softmax_xent",
      "total_steps": 1000,
      "input": {"batch_size": batch_size},
      "model": model,
      "optax_name": "scale_by_adam",
      "grad_clip_norm": CLIP,
      "lr": LR,
      "wd": WD,
      "schedule": {"warmup_steps": 10, "decay_type": "cosine"},
    }
  )


def _donating(update, state, batch):
  """Returns a function that steps on from the state that it left."""

  def run():
    nonlocal state
    state, values = update(state, batch)
    return values

  return run


def _jax_step(run, dtype, compile_secs):
  import jax
  import jax.numpy as jnp

  from dpn import timing

  def matmul(size):
    a = jax.random.uniform(jax.random.key(0), (size, size)).astype(dtype)
    multiply = jax.jit(jnp.matmul)
    return lambda: jax.block_until_ready(multiply(a, a))

  return Step(
    run,
    jax.block_until_ready,
    matmul,
    compile_secs,
    timing.peak_memory_bytes,
    jax.devices()[0].device_kind,
  )


def _host_memory():
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return peak if sys.platform == "darwin" else peak * 1024


def _import_big_vision(folder):
  """Imports big_vision, which never calls the TensorFlow that it wants."""
  if not os.path.isfile(os.path.join(folder, "big_vision", "optax.py")):
    raise FileNotFoundError(
      f"--big_vision={folder}: there is no big_vision/optax.py. Give the root "
      "of a checkout of github.com/google-research/big_vision."
    )
  import flax.training.checkpoints  # noqa: F401, before TensorFlow seems there

  import dpn.weights.checkpoint  # noqa: F401, likewise

  sys.path.insert(0, folder)
  stubs = ("tensorflow", "tensorflow.io", "tensorflow.io.gfile")
  sys.modules.update({name: mock.MagicMock() for name in stubs})
  importlib.import_module("big_vision.optax")
  importlib.import_module("big_vision.models.vit")
  for name in stubs:
    del sys.modules[name]
