"""FLOPs against counts by hand."""

import jax
import jax.numpy as jnp
import pytest

from dpn import flops
from dpn.models import vit


def _shape(*dims):
  return jax.ShapeDtypeStruct(dims, jnp.float32)


def test_a_product_of_matrices():
  f = lambda a, b: jnp.einsum("bij,bjk->bik", a, b)
  assert flops.count(f, _shape(5, 2, 3), _shape(5, 3, 7)) == 5 * 2 * 3 * 7 * 2


def test_a_convolution():
  f = lambda x, k: jax.lax.conv_general_dilated(
    x, k, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
  )
  # 3 x 3 places, each 2 x 2 x 4 multiply-adds for each of 8 channels.
  got = flops.count(f, _shape(1, 6, 6, 4), _shape(2, 2, 4, 8))
  assert got == 9 * 16 * 8 * 2


def test_loops_branches_and_what_nobody_needs():
  def f(x, w):
    unused = x @ w @ w
    x, _ = jax.lax.scan(lambda x, _: (x @ w, None), x, length=5)
    x = jax.lax.cond(x[0, 0] > 0, lambda x: x @ w @ w, lambda x: x, x)
    del unused
    return jax.jit(lambda x: x @ w)(x)

  # 5 in the loop, 2 in the dearer branch, 1 in the call.
  assert flops.count(f, _shape(4, 4), _shape(4, 4)) == 8 * 128


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("remat", ["none", "nothing_saveable"])
def test_vit_b16(scan, remat):
  model = vit.Model(1000, variant="B/16", scan=scan, remat_policy=remat)
  image = _shape(1, 224, 224, 3)
  variables = jax.eval_shape(model.init, jax.random.key(0), image)
  got = flops.count(lambda v, x: model.apply(v, x)[0], variables, image)
  n, width, mlp, depth = 196, 768, 3072, 12
  block = 4 * n * width**2 + 2 * n**2 * width + 2 * n * width * mlp
  assert got == 2 * (depth * block + n * 768 * width + width * 1000)


def _custom_vjp(f):
  result = jax.custom_vjp(f)
  result.defvjp(lambda *args: (f(*args), args), lambda args, _: args)
  return result


@pytest.mark.parametrize(
  "wrap", [lambda f: f, jax.jit, jax.checkpoint, _custom_vjp]
)
def test_only_what_is_trained_has_gradients(wrap):
  dot = wrap(jnp.matmul)
  f = lambda x, a, b: dot(dot(x, a), b).sum()
  args = [_shape(4, 4)] * 3
  for trained, want in (
    ((False, True, True), 5),  # of the pixels x there is none
    ((True, True, True), 6),
    ((False, False, True), 3),
    ((False, True, False), 4),
  ):
    assert flops.of_training(f, *args, trained=trained) == want * 128


def test_peaks_of_similar_names():
  class Device:
    def __init__(self, kind):
      self.device_kind = kind

  assert flops.peak(Device("NVIDIA H100 PCIe")) == 756e12
  assert flops.peak(Device("NVIDIA H100 80GB HBM3")) == 989e12
  assert flops.peak(Device("NVIDIA H200 NVL")) == 835e12
  assert flops.peak(Device("NVIDIA H100 80GB HBM3 MIG 1g.10gb")) is None
  assert flops.peak(Device("TPU v5 lite")) == 197e12
  assert flops.peak(Device("TPU v5")) == 459e12
  assert flops.peak(Device("NVIDIA A100-SXM4-80GB")) == 312e12
  assert flops.peak(Device("NVIDIA L4")) == 121e12
  assert flops.peak(Device("NVIDIA L40S")) == 362e12
  assert flops.peak(Device("NVIDIA L400")) is None
  assert flops.peak(Device("cpu")) is None
