"""Memory, collectives and bounds of compiled steps."""

import pathlib
import re
import subprocess
import sys
import types

import jax
import pytest

from dpn.configs import augreg_i1k
from dpn.scripts import compile as compile_lib
from dpn.scripts.compilation import (
  fit,
  gpus,
  hlo,
  programs,
  roofline,
  scaling,
  table,
  targets,
)

ROOT = pathlib.Path(__file__).parent.parent


def _config():
  config = augreg_i1k.get_config("variant=S/32")
  config.input.batch_size = 8
  config.model.update(width=64, depth=2, mlp_dim=256, num_heads=8, scan=True)
  config.num_classes = 1000
  config.total_steps = 20_000
  del config.total_epochs
  config.sharding_strategy = [(".*", "fsdp(min_size_to_shard_mb=0)")]
  return config


def test_parameters_and_optimizer_fall_as_one_over_n():
  parts, arguments = [], []
  for n in (1, 4):
    step, compiled = compile_lib.compile_step(_config(), jax.devices()[:n])
    parts.append(compile_lib.memory(step, compiled))
    arguments.append(compiled.memory_analysis().argument_size_in_bytes)
  # Parameters in float32, first moments in bfloat16, second in float32.
  one = parts[0]
  assert one["optimizer"] == pytest.approx(one["parameters"] * 1.5, rel=0.01)
  state = [p["parameters"] + p["optimizer"] for p in parts]
  assert state[1] == pytest.approx(state[0] / 4, rel=0.02)
  # What XLA says the compiled program takes: state, batch and the step number.
  for p, argument in zip(parts, arguments, strict=True):
    known = ("parameters", "optimizer", "other state", "batch")
    assert argument == pytest.approx(sum(p[k] for k in known), abs=2048)


def test_evaluators_and_first_parameters_compile_without_data():
  config = _config()
  step = compile_lib.build_step(config, jax.devices()[:2])
  found = dict(programs.lower(config, step, ["init", "val"]))
  assert [*found] == ["init", "val"]
  size = compile_lib.per_device(step.shapes)
  said = found["init"].compile().memory_analysis()
  assert said.output_size_in_bytes == pytest.approx(size, rel=0.01)
  size = compile_lib.per_device((step.shapes.params, step.batch_shapes))
  said = found["val"].compile().memory_analysis()
  assert said.argument_size_in_bytes == pytest.approx(size, rel=0.01)
  with pytest.raises(ValueError, match="Unknown program of --what 'few'"):
    programs.check(config, ["few"])


def test_an_evaluator_that_does_not_fit_fails_the_command():
  command = [sys.executable, "-m", "dpn.scripts.compile", "--target=cpu:1"]
  command += ["--config=configs/digits.py:stem_ln=dpn", "--what=test"]
  command += ["--config.evals.test.batch_size=4096", "--memory_gb=0.025"]
  done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
  assert "It fits: " in done.stdout  # the step
  assert done.stdout.rstrip().endswith("in all: does not fit")
  assert done.returncode == 1


def test_advice():
  parts = {"parameters": 8, "optimizer": 16, "activations, gradients": 72}
  assert compile_lib.advice(parts, 100).startswith("It fits: 96%")
  text = compile_lib.advice(parts, 20)
  assert text.startswith("It does not fit: 4.8 times")
  assert "--fit" in text


def test_of_a_gpu_s_memory_jax_takes_three_quarters(monkeypatch):
  other = "XLA_PYTHON_CLIENT_MEM_FRACTION"
  for name in ("XLA_CLIENT_MEM_FRACTION", other):
    monkeypatch.delenv(name, raising=False)
  usable = lambda name: targets.CHIPS[name].usable_gb
  assert (usable("h100"), usable("v5e"), usable("cpu")) == (59.25, 16, 0)
  monkeypatch.setenv(other, "0.5")
  assert usable("h100") == 39.5
  monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "0.9")
  assert usable("h200") == pytest.approx(125.1)


def test_the_smallest_change_that_fits():
  tried = []

  def attempt(config):
    tried.append((config.get("grad_accum"), config.model.get("remat_policy")))
    needed = 10 + 90 / (config.get("grad_accum") or 1)
    if config.model.get("remat_policy"):
      needed = 10 + (needed - 10) / 4
    if needed > room:
      raise fit.DoesNotFit(f"needs {needed}", needed)
    return needed

  kw = {"devices": 2, "state": 10}
  search = lambda: fit.search(_config(), attempt, room=room, **kw)
  room = 100
  assert search() == ({}, 100)
  room = 40  # of 8 images over 2 devices grad_accum=2 leaves 55
  tried.clear()
  assert search() == ({"grad_accum": 4}, 32.5)
  assert tried == [(None, None), (4, None)]  # 2 could not have been enough
  room = 20
  change, needed = search()
  assert change == {"model.remat_policy": "nothing_saveable", "grad_accum": 4}
  assert needed == pytest.approx(10 + 90 / 16)
  room = 1
  with pytest.raises(ValueError, match="needs more devices"):
    search()


def test_scaling(tmp_path):
  config, devices = _config(), {"v4:2x2x2": 8, "v4:2x2x4": 16}
  compiled = []

  def bounds(config, target):
    compiled.append((target, config.input.batch_size))
    each = config.input.batch_size / devices[target]
    least = {"compute": each, "memory": 2.0, "interconnect": 0.5}
    rate = config.input.batch_size / max(least.values())
    assert config.total_steps == 10**6
    return {
      **{"seconds_at_least": least, "bound": "memory", "hosts": 2, "fit": {}},
      "images_per_sec_at_most": rate,
    }

  path = str(tmp_path / "scaling.png")
  for _ in range(2):  # the second time nothing is left
    scaling.draw(path, config, devices, bounds)
  first, more = ("v4:2x2x2", 8), ("v4:2x2x4", 16)
  assert compiled == [first] * 2 + [more] * 3 + [("v4:2x2x4", 8)]
  rows = table.read(str(tmp_path / "scaling.jsonl"))
  # 16 images in 2 seconds, for one of two hosts, with RandAugment.
  assert rows[2]["cores_per_host"] == pytest.approx(16 / 2 / 2 / 745)
  row = "| strong | `v4:2x2x4`, 16 | 0.5 | whole on each | 500.0 |"
  assert row in scaling.markdown(rows)
  config.input.batch_size = 12
  with pytest.raises(ValueError, match="12 cannot be split over the 8 devices"):
    scaling.draw(path, config, devices, bounds)


def test_fit_as_flags():
  change = {"sharding_strategy": [(".*", 'fsdp(axis="data")')]}
  assert fit.flags(change) == (
    "'--config.sharding_strategy=[('\"'\"'.*'\"'\"', "
    "'\"'\"'fsdp(axis=\"data\")'\"'\"')]'"
  )
  config = fit.changed(_config(), change | {"model.depth": 7})
  assert config.sharding_strategy == change["sharding_strategy"]
  assert (config.model.depth, _config().model.depth) == (7, 2)


def test_only_what_does_not_fit_is_a_row(tmp_path, monkeypatch):
  page, ended = tmp_path / "page.md", types.SimpleNamespace(returncode=1)
  marks = "<!-- scripts.compile --table --><!-- end of the table -->"
  page.write_text(f"a {marks} b")
  monkeypatch.setattr(table, "CASES", ["jft.py v5e:2x2"])
  monkeypatch.setattr(table.subprocess, "run", lambda *a, **kw: ended)
  for ended.stderr, said in (
    ("Error: No such file", "Err"),
    ("", "nothing said"),
  ):
    with pytest.raises(ValueError, match=rf"jft\.py.* status 1: {said}"):
      table.rebuild(str(page), [])
  error = f"Error: Nothing of 3 changes fits. {fit.HOPELESS}"
  ended.stderr = f"a warning\n{error}\n(--traceback …)"
  table.rebuild(str(page), [])
  [row] = table.read(str(tmp_path / "page.jsonl"))
  assert row["error"] == error
  start, _, end = page.read_text().partition(error)
  assert (start[:6], end[-5:]) == ("a <!--", "--> b")


HLO = """HloModule jit_step

%sum (a: f32[], b: f32[]) -> f32[] {
  ROOT %add = f32[] add(%a, %b)
}

%body (p: (s32[], bf16[64,8])) -> (s32[], bf16[64,8]) {
  %x = bf16[64,8]{1,0} all-gather(%y), dimensions={0}
  %z = (f32[4]{0}, f32[16]{0}) all-gather-start(%w), dimensions={0}
  %d = f32[16]{0} all-gather-done(%z)
}

%cond (p: (s32[], bf16[64,8])) -> pred[] {
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (p0: f32[10]) -> f32[10] {
  %loop = (s32[], bf16[64,8]) while(%t), condition=%cond, body=%body, \
backend_config={"known_trip_count":{"n":"12"}}
  %r = (f32[10]{0}, f32[2,3]{1,0}) all-reduce(%p0, %q), to_apply=%sum
  ROOT %c = f32[10]{0} copy(%g)
}
""".replace("\\\n", "")


def test_loops_by_their_condition():
  text = HLO.replace("known_trip_count", "hint")
  limit = "%n = s32[]{:T(128)} constant(12)\n  ROOT %lt"
  assert hlo.Program(text).collectives()["all-gather"].count == 2
  text = text.replace("ROOT %lt", limit)
  assert hlo.Program(text).collectives() == hlo.Program(HLO).collectives()


def test_collectives_of_a_text():
  text = f"HloModule jit_step, num_partitions=4\n{HLO}"
  reduced, gathered = 4 * (10 + 6), 12 * (2 * 64 * 8 + 4 * 16)
  assert hlo.Program(text).collectives() == {
    "all-reduce": hlo.Traffic(1, reduced, reduced * 2 * 3 / 4),
    "all-gather": hlo.Traffic(24, gathered, gathered * 3 / 4),
  }


@pytest.mark.parametrize(
  "groups",
  [
    "{{0,1,2,3},{4,5,6,7}}",
    "[2,4]<=[8]",
    "[2,4]<=[4,2]T(1,0)",
    "mesh['a'=2,'b'=4] {'b'}",
    "mesh['a'=1,'b'=4,'c'=2], device_ids=([2,4]T(1,0)) {'b'}",
    "mesh['a'=2,'b'=2,'c'=2] {'c','a'}, use_global_device_ids=true",
  ],
)
def test_a_collective_among_some(groups):
  text = f"""HloModule jit_step, num_partitions=8
ENTRY %main (p0: f32[8]) -> f32[8] {{
  %s = f32[8]{{0}} reduce-scatter(%p0), replica_groups={groups}, x={{0}}
}}"""
  [traffic] = hlo.Program(text).collectives().values()
  # Of four devices each keeps one part and sends the other three.
  assert traffic == hlo.Traffic(1, 32, 3 * 32)


def test_fsdp_gathers_parameters_and_splits_no_activations():
  step, compiled = compile_lib.compile_step(_config(), jax.devices()[:4])
  size = sum(x.size * 4 for x in jax.tree.leaves(step.shapes.params))
  traffic = hlo.Program(compiled.as_text()).collectives()
  # XLA for CPUs sums gradients where it could scatter them. It gathers for the
  # forward and for the backward pass.
  assert traffic["all-reduce"].size == pytest.approx(size, rel=0.02)
  assert traffic["all-gather"].size < 2 * size
  assert "all-to-all" not in traffic


def test_bounds():
  chip = targets.Chip(16, 1e12, 1e9, 1e8)
  text = f"HloModule jit_step, num_partitions=4\n{HLO}"
  found = roofline.estimate(text, 8e12, chip, 4)
  least, sent = found["seconds_at_least"], 64 * 2 * 3 / 4 + 13056 * 3 / 4
  assert least["compute"] == 2
  assert least["memory"] == pytest.approx(found["hbm_bytes"] / 1e9)
  assert least["interconnect"] == pytest.approx(sent / 1e8)


# A loop of 12 trips updates a slice in place and multiplies (4, 8) by (8, 16),
# written as TPUs write it, once in memory and once on the chip, S(1).
STEP = """HloModule jit_step

%fused (param_0: f32[12,4,8], param_1: f32[4,8]) -> f32[12,4,8] {
  %param_0 = f32[12,4,8]{2,1,0:T(8,128)} parameter(0)
  %param_1 = f32[4,8]{1,0:T(8,128)} parameter(1)
  %param_2 = s32[] parameter(2)
  %bitcast.1 = f32[1,4,8]{2,1,0:T(8,128)} bitcast(%param_1)
  ROOT %update = f32[12,4,8]{2,1,0:T(8,128)} dynamic-update-slice(%param_0, \
%bitcast.1, %param_2)
}

%body (p: (s32[], f32[12,4,8], f32[4,8])) -> (s32[], f32[12,4,8], f32[4,8]) {
  %p = (s32[], f32[12,4,8]{2,1,0:T(8,128)}, f32[4,8]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %all = f32[12,4,8]{2,1,0:T(8,128)} get-tuple-element(%p), index=1
  %x = f32[4,8]{1,0:T(8,128)} get-tuple-element(%p), index=2
  %w = bf16[8,16]{1,0:T(8,128)(2,1)S(1)} custom-call()
  %y = f32[4,16]{1,0:T(8,128)S(1)} convolution(%x, %w), dim_labels=bf_io->bf
  %new = f32[12,4,8]{2,1,0:T(8,128)} fusion(%all, %x, %i), kind=kLoop, \
calls=%fused
  ROOT %t = (s32[], f32[12,4,8]{2,1,0:T(8,128)}, f32[4,8]) tuple(%i, %new, %x)
}

%cond (p: (s32[], f32[12,4,8], f32[4,8])) -> pred[] {
  %n = s32[] constant(12)
  ROOT %lt = pred[] compare(%n, %n), direction=LT
}

ENTRY %main (a: f32[2,4,8], b: f32[2,8,3]) -> f32[2,4,3] {
  %a = f32[2,4,8] parameter(0)
  %b = f32[2,8,3] parameter(1)
  %loop = (s32[], f32[12,4,8], f32[4,8]) while(%t), condition=%cond, body=%body
  ROOT %d = f32[2,4,3] dot(%a, %b), lhs_batch_dims={0}, \
lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}
}
""".replace("\\\n", "")


def test_a_counter_that_skips_numbers():
  grown = "\n  %two = s32[] constant(2)\n  %j = s32[] add(%i, %two)"
  text = STEP.replace("%p), index=0", f"%p), index=0{grown}")
  text = text.replace("tuple(%i", "tuple(%j").replace(
    "ROOT %lt", "%m = s32[] get-tuple-element(%p), index=0\n  ROOT %lt"
  )
  once = 2 * 2 * 4 * 8 * 3
  assert hlo.Program(text).flops()["f32"] - once == 6 * 2 * 4 * 8 * 16


def test_flops_and_bytes_of_a_loop():
  program = hlo.Program(STEP)
  assert program.flops() == {"f32": 12 * 2 * 4 * 8 * 16 + 2 * 2 * 4 * 8 * 3}
  moved = {i.op: size for i, size in program.hbm()}
  tile = 8 * 128 * 4  # what (4, 8) takes
  # The slice is read and written, the rest of the array is not touched.
  assert moved["fusion"] == 12 * (2 * tile + 4)
  assert moved["convolution"] == 12 * tile  # its kernel and result are near
  assert moved["dot"] == 4 * (2 * 4 * 8 + 2 * 8 * 3 + 2 * 4 * 3)


def test_convolutions_without_their_padding():
  # Batches as a spatial dimension: 12 products of (4, 8) by (8, 16).
  text = """ENTRY %main (a: f32[4,8,12], b: f32[8,16,12]) -> f32[4,16,12] {
  %a = f32[4,8,12] parameter(0)
  %b = f32[8,16,12] parameter(1)
  ROOT %y = f32[4,16,12] convolution(%a, %b), window={size=12 stride=11 \
pad=0_0 lhs_dilate=12}, dim_labels=bf0_io0->bf0
}""".replace("\\\n", "")
  assert hlo.Program(text).flops() == {"f32": 12 * 2 * 4 * 8 * 16}
  # 3 x 3 over 4 x 4 with padding: 10 of 12 taps count in each direction.
  text = """ENTRY %main (a: f32[1,4,4,2], b: f32[3,3,2,5]) -> f32[1,4,4,5] {
  %a = f32[1,4,4,2] parameter(0)
  %b = f32[3,3,2,5] parameter(1)
  ROOT %y = f32[1,4,4,5] convolution(%a, %b), window={size=3x3 pad=1_1x1_1}, \
dim_labels=b01f_01io->b01f
}""".replace("\\\n", "")
  assert hlo.Program(text).flops() == {"f32": 2 * 10 * 10 * 2 * 5}


def test_flops_are_those_of_the_model():
  step, compiled = compile_lib.compile_step(_config(), jax.devices()[:2])
  found = hlo.Program(compiled.as_text()).flops().total()
  assert found == pytest.approx(step.flops() / 2, rel=0.02)


@pytest.mark.parametrize(
  ("target", "message"),
  [
    ("v5", "Unknown --target 'v5'"),
    ("local:1", "'local:1'. Did you mean 'local'"),
    ("b300:8", "Unknown --target 'b300:8'"),
    ("v5e", "'v5e': expected a number of devices"),
    ("cpu:2x2", "'cpu:2x2': expected a number of devices, as in h100:8 or cpu"),
    ("h100:2x4", "'h100:2x4': expected a number of devices, as in h100:8"),
    ("h100:12", "a host has 8 GPUs, expected up to 8"),
    ("v4:2x2", "'v4:2x2': expected 3 sizes, at most 16x16x16"),
    ("v5e:3x5x7", "'v5e:3x5x7': expected 2 sizes, at most 16x16"),
    ("v5e:64x64", "'v5e:64x64': expected 2 sizes, at most 16x16"),
  ],
)
def test_targets_that_are_none(target, message):
  with pytest.raises(ValueError, match=message):
    targets.parse(target)


def test_what_is_here(monkeypatch):
  assert targets.parse("local") == (targets.Chip(), None)  # CPUs
  tpu = types.SimpleNamespace(device_kind="TPU v5 lite")
  monkeypatch.setattr(jax, "devices", lambda: [tpu])
  assert targets.parse("local") == (targets.CHIPS["v5e"], [tpu])


# Of cuBLAS: a product with a bias that is added in place, and its workspace.
CUBLAS = r"""
ENTRY %main (a: bf16[64,48], b: bf16[48,16], c: bf16[64,16]) -> bf16[64,16] {
  %a = bf16[64,48]{1,0} parameter(0)
  %b = bf16[48,16]{1,0} parameter(1)
  %c = bf16[64,16]{1,0} parameter(2)
  %m = (bf16[64,16]{1,0}, s8[33554432]{0}) custom-call(%a, %b, %c), custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}
  ROOT %r = bf16[64,16]{1,0} get-tuple-element(%m), index=0
}
"""  # noqa: E501


def test_products_of_cublas():
  program = hlo.Program(CUBLAS)
  assert program.flops() == {"bf16": 2 * 64 * 48 * 16}
  [(_, moved)] = program.hbm()
  assert moved == 2 * (64 * 48 + 48 * 16 + 2 * 64 * 16)


def test_gpus_that_are_not_there(monkeypatch):
  monkeypatch.setattr(gpus.importlib.util, "find_spec", lambda name: None)
  with pytest.raises(ValueError, match=r"\.\[compile-gpu\]"):
    targets.parse("a100:8")
  with pytest.raises(ValueError, match=r"'v5e:2x2' needs.*\.\[compile-tpu\]"):
    targets.parse("v5e:2x2")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["h100:2", "a100:16", "h200:1"])
def test_for_gpus(target):
  pytest.importorskip("jax_plugins.xla_cuda12", reason="the extra compile-gpu")
  chip, devices = targets.parse(target)
  assert len(devices) == int(target.partition(":")[2])
  config = _config()
  config.input.batch_size = 2 * len(devices)
  del config.sharding_strategy  # small arrays' products are not all divided
  # On GPUs each device computed the whole batch once it went through a cond.
  config.mixup = {"p": 0.8, "cutmix_p": 1.0}
  step, compiled = compile_lib.compile_step(config, devices)
  text, count = compiled.as_text(), len(devices)
  found = roofline.estimate(text, step.flops(), chip, count)
  flops = found["flops"]
  assert flops["program"] == pytest.approx(flops["model"], rel=0.05)
  assert ("all-reduce" in found["collectives"]) == (len(devices) > 1)
  assert chip.link == {2: 450e9, 16: 25e9, 1: 450e9}[len(devices)]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_of_gpus(dtype):
  pytest.importorskip("jax_plugins.xla_cuda12", reason="the extra compile-gpu")
  _, devices = targets.parse("h100:1")
  config = _config()
  config.model.dtype_mm = dtype
  _, compiled = compile_lib.compile_step(config, devices)
  assert ("__cudnn$fmha" in compiled.as_text()) == (dtype == "bfloat16")


@pytest.mark.slow
def test_the_batch_is_not_innermost_on_gpus():
  pytest.importorskip("jax_plugins.xla_cuda12", reason="the extra compile-gpu")
  _, devices = targets.parse("h100:1")
  config = _config()
  config.model.update(scan=False, registers=4, pool_type="tok")
  config.input.batch_size = 128
  _, compiled = compile_lib.compile_step(config, devices)
  # 49 patches, a class token and registers; XLA writes layouts as shapes.
  assert not re.findall(r"\[(?:49|50|54),64,128\]", compiled.as_text())


@pytest.mark.slow
def test_tpu():
  pytest.importorskip("libtpu", reason="the extra compile-tpu")
  assert len(targets.parse("v5e:1x1")[1]) == 1
  with pytest.raises(ValueError, match=r"(?s)'v5e:3x5': TPU's.*whole hosts"):
    targets.parse("v5e:3x5")
  chip, devices = targets.parse("v5e:2x4")
  config = _config()
  del config.sharding_strategy
  step, compiled = compile_lib.compile_step(config, devices)
  parts = compile_lib.memory(step, compiled)
  assert (len(devices), chip.memory_gb) == (8, 16)
  traffic = hlo.Program(compiled.as_text()).collectives()
  size = compile_lib.per_device(step.shapes.params)
  assert traffic["all-reduce"].size == pytest.approx(size, rel=0.02)
  said = compiled.memory_analysis()
  whole = said.argument_size_in_bytes + said.temp_size_in_bytes
  assert sum(parts.values()) == whole
  found = roofline.estimate(compiled.as_text(), step.flops(), chip, 8)
  assert found["flops"]["program"] == pytest.approx(step.flops() / 8, rel=0.02)
  assert found["hbm_bytes"] > said.argument_size_in_bytes


@pytest.mark.slow
def test_a_chip_of_two_cores_is_one_device():
  pytest.importorskip("libtpu", reason="the extra compile-tpu")
  chip, devices = targets.parse("v4:2x2x2")
  assert (len(devices), chip.memory_gb) == (8, 32)
  config = _config()
  step, compiled = compile_lib.compile_step(config, devices)
  found = hlo.Program(compiled.as_text()).flops().total()
  assert found == pytest.approx(step.flops() / 8, rel=0.02)
