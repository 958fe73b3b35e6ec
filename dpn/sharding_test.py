"""Meshes and shardings on four devices."""

import re

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import PartitionSpec as P

from dpn import sharding
from dpn.models import vit


def test_meshes_cover_all_devices():
  assert dict(sharding.make_mesh().shape) == {"data": 4}
  mesh = sharding.make_mesh([("data", -1), ("model", 2)])
  assert dict(mesh.shape) == {"data": 2, "model": 2}
  assert sorted(d.id for d in mesh.devices.flat) == [0, 1, 2, 3]
  # What Linen needs; JAX's default would be Explicit.
  assert set(mesh.axis_types) == {jax.sharding.AxisType.Auto}


@pytest.mark.parametrize(
  "axes",
  [
    [("data", 3)],
    [("data", 3), ("model", -1)],
    [("data", 8), ("model", -1)],
    [("data", -1), ("model", -1)],
    [("data", -1), ("model", 0)],
    [("data", -4), ("model", -1)],
  ],
)
def test_meshes_that_do_not_fit(axes):
  with pytest.raises(ValueError, match=r"config.mesh=.* does not fit 4 device"):
    sharding.make_mesh(axes)


def test_a_batch_is_split_over_all_axes():
  mesh = sharding.make_mesh([("data", 2), ("model", 2)])
  x = jax.device_put(jnp.arange(8.0), sharding.batch(mesh))
  assert [s.data.tolist() for s in x.addressable_shards] == [
    [0, 1],
    [2, 3],
    [4, 5],
    [6, 7],
  ]
  x = jax.device_put(jnp.arange(3.0), sharding.replicated(mesh))
  assert [s.data.tolist() for s in x.addressable_shards] == [[0, 1, 2]] * 4


@pytest.mark.parametrize(
  ("batch_size", "near"),
  [(6, "4 or 8"), (9, "8 or 12"), (3, "4"), (0, "4"), (-4, "4")],
)
def test_batch_sizes_must_divide(batch_size, near):
  mesh = sharding.make_mesh()
  message = rf"b={batch_size} cannot .* 4 devices.*, for example {near}\.$"
  with pytest.raises(ValueError, match=message):
    sharding.check_batch_size("b", batch_size, mesh)
  sharding.check_batch_size("b", 12, mesh)


def _spec(shape, rule, axes=(("data", -1),), dtype=jnp.float32):
  mesh = sharding.make_mesh(axes)
  leaf = jax.ShapeDtypeStruct(shape, dtype)
  inferred = sharding.infer({"w": leaf}, [(".*", rule)], mesh)["w"]
  assert inferred.mesh == mesh
  return inferred.spec


@pytest.mark.parametrize(
  ("shape", "spec"),
  [
    ((8, 16, 3), P(None, "data")),  # the largest
    ((16, 16), P("data")),  # the first of equal ones
    ((17, 8), P(None, "data")),  # the largest that divides
    ((17, 6), P()),  # none divides
    ((), P()),
  ],
)
def test_fsdp_picks_the_largest_dimension_that_divides(shape, spec):
  assert _spec(shape, "fsdp(min_size_to_shard_mb=0)") == spec


def test_fsdp_leaves_small_arrays_whole():
  # 2**20 float32 are 4 MB, the default.
  assert _spec((1024, 1024), "fsdp") == P()
  assert _spec((1024, 1028), "fsdp") == P(None, "data")
  assert _spec((1024, 1028), "fsdp", dtype=jnp.bfloat16) == P()
  assert _spec((1024, 1028), "fsdp(min_size_to_shard_mb=4.1)") == P()


def test_a_mesh_of_two_axes_on_a_tpu_that_is_a_square():
  """As of a v6e-64, which `jax.make_mesh` does not split."""
  kw = {"platform": "tpu", "device_kind": "TPU v6 lite", "process_index": 0}
  kw |= {"core_on_chip": 0, "slice_index": 0}
  chip = lambda i: type(
    "Chip", (), {"id": i, "coords": (i % 8, i // 8, 0), **kw}
  )
  chips = [chip(i)() for i in range(64)]
  mesh = sharding.make_mesh([("replica", -1), ("data", 4)], chips)
  assert dict(mesh.shape) == {"replica": 16, "data": 4}
  assert sorted(d.id for d in mesh.devices.flat) == list(range(64))


def test_meshes_that_make_no_sense():
  with pytest.raises(ValueError, match=r"mesh.0 must be of type.*got 'data'"):
    sharding.make_mesh(("data", 8))
  with pytest.raises(ValueError, match="has two axes of one name"):
    sharding.make_mesh([("data", 4), ("data", 1)])


def test_fsdp_says_what_stays_whole(caplog):
  assert _spec((1023, 1026), "fsdp") == P()
  assert "(1023, 1026) stay whole on every device" in caplog.text


def test_fsdp_over_another_axis():
  axes = [("data", -1), ("model", 2)]
  rule = 'fsdp(axis="model", min_size_to_shard_mb=0)'
  assert _spec((3, 6), rule, axes) == P(None, "model")
  assert _spec((1024, 1028), 'fsdp("model")', axes) == P(None, "model")


def test_the_first_rule_that_matches_wins():
  shapes = {
    name: jax.ShapeDtypeStruct((8, 4), jnp.float32)
    for name in ("embedding", "head", "other")
  }
  fsdp = 'fsdp(axis="data", min_size_to_shard_mb=0)'
  strategy = [("head", "replicate"), ("head|emb.*", fsdp)]
  inferred = sharding.infer(shapes, strategy, sharding.make_mesh())
  assert {k: s.spec for k, s in inferred.items()} == {
    "embedding": P("data"),
    "head": P(),
    "other": P(),
  }


def test_optimizer_state_lies_like_its_parameter():
  params = {"kernel": jnp.zeros((8, 4)), "bias": jnp.zeros(4)}
  state = {"params": params, "opt": optax.scale_by_adam().init(params)}
  strategy = [(".*kernel", "fsdp(min_size_to_shard_mb=0)")]
  inferred = sharding.infer(state, strategy, sharding.make_mesh())
  adam = inferred["opt"]
  for tree in (inferred["params"], adam.mu, adam.nu):
    assert tree["kernel"].spec == P("data")
    assert tree["bias"].spec == P()
  assert adam.count.spec == P()


@pytest.mark.parametrize(
  ("rule", "message"),
  [
    ("fdsp", "Unknown sharding rule 'fdsp'. Did you mean 'fsdp'?"),
    ("fsdp(axis='dat')", "Unknown mesh axis 'dat'. Did you mean 'data'?"),
    ("fsdp(ax='data')", "unexpected keyword argument 'ax'"),
    ("fsdp(axis=data)", "Cannot read the sharding rule"),
    ("fsdp(", "Cannot read the sharding rule"),
    ("a.b()", "Cannot read the sharding rule"),
  ],
)
def test_wrong_rules(rule, message):
  with pytest.raises(ValueError, match=message):
    _spec((4, 4), rule)


def test_parameters_of_as_many_rows_are_not_split_as_a_batch():
  model = vit.Model(3, variant="mu/4", depth=1, stem_ln="dpn")
  image = jnp.zeros((model.config.width, 8, 8, 3))
  variables = jax.eval_shape(model.init, jax.random.key(0), image)
  keep = sharding.keep_batch(sharding.make_mesh(), len(image))
  found = str(jax.make_jaxpr(keep(model.apply))(variables, image))
  shapes = re.findall(r"f32\[([\d,]+)\] = sharding_constraint", found)
  assert shapes
  assert all("," in shape for shape in shapes)


def test_a_strategy_is_pairs():
  with pytest.raises(ValueError, match=r"expected .*\(regex, rule\) pairs"):
    sharding.infer({"w": jnp.zeros(4)}, [".*"], sharding.make_mesh())
