"""The training steps that benchmarks.step times: ours, timm's, big_vision's.

`ours`, `big_vision` and `timm` return a `Step` that is compiled and has its
data on the device: random images and labels of 1,000 classes. All use Adam with
weight decay, and clip gradients at norm 1. As a program, this module takes the
arguments of `measure` as JSON and prints its result. JAX and PyTorch are
imported where they are used, since they may live in different environments.
"""

import dataclasses
import importlib
import json
import os
import sys
import time
import timeit
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

from dpn import host_memory

NUM_CLASSES = 1000
LR, WD, CLIP = 1e-3, 1e-4, 1.0
TIMM_SIZES = {"Ti": "tiny", "S": "small", "B": "base", "L": "large"}
MATMUL_SIZE = {"cpu": 2048}
MATMUL_SIZE_ELSEWHERE = 8192
KEPT = ("compile_secs", "versions", "device", "flops", "peak")


@dataclasses.dataclass(frozen=True)
class Setting:
  """One model and how it is trained; see `dpn.models.vit`."""

  variant: str = "S/16"
  resolution: int = 224  # rows and columns of an image
  batch_size: int = 16
  dtype: str = "float32"  # of matrix products
  stem_ln: str = "none"  # ours only
  scan: bool = False
  remat: str = "none"
  attn_impl: str = "auto"  # ours only


@dataclasses.dataclass
class Step:
  """A compiled training step."""

  run: Callable[[], Any]  # dispatches a step; returns what `wait` takes
  wait: Callable[[Any], Any]  # returns once that step is done
  # size → a function like `run` that multiplies two square matrices.
  matmul: Callable[[int], Callable[[], Any]]
  compile_secs: float  # tracing included
  memory: Callable[[], int]  # peak bytes so far
  device: str  # kind
  program: Any = None  # by XLA, if it compiled the step
  versions: str = ""  # of a peer's libraries
  flops: int | None = None  # of a step, by `dpn.flops`
  peak: float | None = None  # of the device in FLOP/s, by `dpn.flops`


def measure(
  who: str,
  setting: dict,
  steps: int,
  secs: float,
  folder: str,
  keep_memory: bool,
) -> dict[str, Any]:
  """Returns all measurements of a step; called in a process of its own.

  The step is "ours", "timm" or else big_vision's, whose checkout is in
  `folder`; `setting` has the fields of a `Setting`. After two steps for warmup,
  at least `steps` steps and `secs` seconds are timed. With `keep_memory`, CPUs
  keep memory from step to step, as in trainers.train.
  """
  if keep_memory:
    host_memory.keep_between_steps()
  make = {"ours": ours, "timm": timm}.get(who)
  setting = Setting(**setting)
  step = make(setting) if make else big_vision(setting, folder)
  return {
    "secs": time_steps(step, steps, secs),
    "memory": step.memory(),
    "reserved": _known(reserved_bytes, step, 0),
    "attention": _known(attention_kernel, step, ""),
    "matmul": _known(matmul_ceiling, step, 0.0),
    "bound": _known(least_secs, step, 0.0),
    **{key: getattr(step, key) for key in KEPT},
  }


def _known(find, step, unknown):
  try:
    return find(step)
  except Exception as e:  # whatever it is, the timing is worth keeping
    print(f"{find.__name__}: {e!r}", file=sys.stderr)
    return unknown


def time_steps(step: Step, steps: int, secs: float = 0) -> list[float]:
  """Returns the seconds from the end of each step to the end of the next.

  There are `steps` of them, or more until they take `secs` together.
  """
  ends, previous = [], step.run()
  while len(ends) < steps + 2 or ends[-1] - ends[1] < secs:
    current = step.run()
    step.wait(previous)
    ends.append(time.perf_counter())
    previous = current
  step.wait(previous)
  return np.diff(ends)[1:].tolist()


def reserved_bytes(step: Step) -> int:
  """Returns the bytes that XLA reserves for a step, 0 without XLA."""
  if not step.program:
    return 0
  memory = step.program.memory_analysis()
  return memory.argument_size_in_bytes + memory.temp_size_in_bytes


def attention_kernel(step: Step) -> str:
  """Returns what computes the attention of a step, "" without XLA."""
  if not step.program:
    return ""
  return "cudnn" if "__cudnn$fmha" in step.program.as_text() else "xla"


def least_secs(step: Step) -> float:
  """Returns a step's least time by the data sheet, 0 if it is not known.

  Computed from the compiled program, as scripts.compile does for absent GPUs.
  """
  if not step.program:
    return 0.0
  import jax

  from dpn.scripts.compilation import roofline, targets

  if not (chip := targets.of_device(jax.devices()[0])):
    return 0.0
  text = step.program.as_text()
  found = roofline.estimate(text, step.flops or 0, chip, jax.device_count())
  return max(found["seconds_at_least"].values())


def matmul_ceiling(step: Step) -> float:
  """Returns the FLOP/s of multiplying square matrices, in the fastest try."""
  size = MATMUL_SIZE.get(step.device, MATMUL_SIZE_ELSEWHERE)
  multiply = step.matmul(size)
  secs = timeit.repeat(lambda: step.wait(multiply()), number=1, repeat=11)
  return 2 * size**3 / min(secs)


def ours(setting: Setting, **options) -> Step:
  """Returns the step as trainers.train builds it, with options of the model."""
  import jax

  import dpn.tasks
  from dpn import flops, sharding
  from dpn.scripts import fake_data
  from dpn.trainers import build

  plain = {"stem_ln": setting.stem_ln, "attn_impl": setting.attn_impl}
  config = config_of(setting, **{**plain, **options})
  mesh = sharding.make_mesh()
  image = (setting.resolution, setting.resolution, 3)
  spec = {
    "image": ((setting.batch_size, *image), np.dtype("float32")),
    "labels": ((setting.batch_size, NUM_CLASSES), np.dtype("float32")),
  }
  task = dpn.tasks.make(config)
  begin = time.perf_counter()
  train_step = build.train_step(
    config, task, spec, mesh, data_size=fake_data.EXAMPLES
  )
  program = train_step.compile()
  compile_secs = time.perf_counter() - begin
  state = train_step.init(jax.random.key(0))
  batch = fake_data.batch(train_step.batch_shapes)
  step = _jax_step(program, state, batch, setting.dtype, compile_secs)
  peak = flops.peak(jax.devices()[0])
  step.peak = peak and peak * jax.device_count()
  step.flops = train_step.flops()
  return step


def big_vision(setting: Setting, folder: str) -> Step:
  """Returns big_vision's step, built from a checkout.

  Its train.py needs TensorFlow, so the step is rewritten here, around
  big_vision's model, loss and optimizer. The state is donated, as there.
  """
  import jax

  _import_big_vision(folder)
  from big_vision import optax as bv_optax
  from big_vision.models import vit

  from dpn.scripts import fake_data

  config = config_of(setting)
  model = vit.Model(NUM_CLASSES, **config.model)
  rng = jax.random.key(0)
  shape = (setting.batch_size, setting.resolution, setting.resolution, 3)
  batch = {
    "image": jax.random.uniform(rng, shape),
    "labels": jax.random.uniform(rng, (setting.batch_size, NUM_CLASSES)),
  }
  params = jax.jit(model.init)(rng, batch["image"])["params"]
  sizes = {
    "total_steps": config.total_steps,
    "batch_size": setting.batch_size,
    "data_size": fake_data.EXAMPLES,
  }
  tx, _ = bv_optax.make(config, params, sched_kw=sizes)
  state = {"params": params, "opt": jax.jit(tx.init)(params)}
  update = jax.jit(_big_vision_update(model, tx, rng), donate_argnums=0)
  begin = time.perf_counter()
  program = update.lower(state, batch).compile()
  compile_secs = time.perf_counter() - begin
  return _jax_step(program, state, batch, setting.dtype, compile_secs)


def _big_vision_update(model, tx, rng):
  """Returns big_vision's update function, to be jitted."""
  import jax
  import optax
  from big_vision import optax as bv_optax
  from big_vision import utils

  def update(state, batch):
    count = bv_optax.get_count(state["opt"], jittable=True)
    _, dropout = jax.random.split(jax.random.fold_in(rng, count))

    def loss_fn(params):
      rngs = {"dropout": dropout}
      variables = {"params": params}
      logits, _ = model.apply(variables, batch["image"], train=True, rngs=rngs)
      return utils.softmax_xent(logits=logits, labels=batch["labels"])

    loss, grads = jax.value_and_grad(loss_fn)(state["params"])
    updates, opt = tx.update(grads, state["opt"], state["params"])
    params = optax.apply_updates(state["params"], updates)
    l2 = optax.tree.norm
    values = {"loss": loss, "l2_grads": l2(grads), "l2_params": l2(params)}
    return {"params": params, "opt": opt}, values | {"l2_updates": l2(updates)}

  return update


def _import_big_vision(folder):
  """Imports big_vision with a stub of TensorFlow, which is never called."""
  if not os.path.isfile(os.path.join(folder, "big_vision", "optax.py")):
    raise FileNotFoundError(
      f"--big_vision={folder}: there is no big_vision/optax.py. Give the root "
      "of a checkout of github.com/google-research/big_vision."
    )
  import flax.training.checkpoints  # noqa: F401, looks for TensorFlow

  import dpn.weights.checkpoint  # noqa: F401, so does this

  sys.path.insert(0, folder)
  stubs = ("tensorflow", "tensorflow.io", "tensorflow.io.gfile")
  sys.modules.update({name: mock.MagicMock() for name in stubs})
  importlib.import_module("big_vision.optax")
  importlib.import_module("big_vision.models.vit")
  for name in stubs:
    del sys.modules[name]


def timm(setting: Setting) -> Step:
  """Returns timm's step: torch.compile, AdamW, autocast below float32."""
  import timm
  import torch

  cuda = torch.cuda.is_available()
  device = "cuda" if cuda else "cpu"
  torch.set_float32_matmul_precision("high")  # TF32 on GPUs, as in JAX
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
  event = lambda: torch.cuda.current_stream().record_event() if cuda else None
  wait = lambda event: event and event.synchronize()

  def run():
    with torch.autocast(device, dtype, enabled=dtype != torch.float32):
      logits = forward(images)
    loss = torch.nn.functional.cross_entropy(logits.float(), labels)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad()
    return event()

  def matmul(size):
    a = torch.rand((size, size), device=device).to(dtype)

    def multiply():
      a @ a
      return event()

    return multiply

  begin = time.perf_counter()
  wait(run())
  compile_secs = time.perf_counter() - begin
  name = torch.cuda.get_device_name() if cuda else "cpu"
  memory = torch.cuda.max_memory_allocated if cuda else host_memory.peak_bytes
  versions = f"timm {timm.__version__}, torch {torch.__version__}"
  return Step(run, wait, matmul, compile_secs, memory, name, versions=versions)


def config_of(setting: Setting, **options) -> Any:
  """Returns a run's config, without data, for our step and big_vision's."""
  import ml_collections

  model = {
    "variant": setting.variant,
    "pool_type": "tok",
    "scan": setting.scan,
    "remat_policy": setting.remat,
    "dtype_mm": setting.dtype,
  }
  return ml_collections.ConfigDict(
    {
      "num_classes": NUM_CLASSES,
      "loss": "softmax_xent",
      "total_steps": 1000,
      "input": {"batch_size": setting.batch_size},
      "model": model | options,
      "optax_name": "scale_by_adam",
      "grad_clip_norm": CLIP,
      "lr": LR,
      "wd": WD,
      "schedule": {"warmup_steps": 10, "decay_type": "cosine"},
    }
  )


def _jax_step(program, state, batch, dtype, compile_secs):
  """Returns the step of a compiled program."""
  import jax
  import jax.numpy as jnp

  from dpn import timing

  def run():
    nonlocal state  # donated to `program`
    state, values = program(state, batch)
    return values

  def matmul(size):
    a = jax.random.uniform(jax.random.key(0), (size, size)).astype(dtype)
    multiply = jax.jit(jnp.matmul)
    return lambda: multiply(a, a)

  return Step(
    run,
    jax.block_until_ready,
    matmul,
    compile_secs,
    timing.peak_memory_bytes,
    jax.devices()[0].device_kind,
    program,
  )


if __name__ == "__main__":
  print(json.dumps(measure(**json.loads(sys.argv[1]))), flush=True)
