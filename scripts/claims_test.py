"""Claims about made-up runs whose answers are known by construction."""

import itertools

import numpy as np
import pandas as pd
import pytest

from dpn.scripts import claims as command
from dpn.scripts import conftest as testing
from dpn.scripts.results import aggregate, claims, run_files, runs

AUGREG = ("S/32", "Ti/16", "B/32", "S/16", "S/16+", "B/16")


def _run(arm, arch, seed, value, *, recipe="AugReg", config=(), **logged):
  """Returns a finished run; `logged` are columns of metrics.jsonl."""
  metric = "val/prec@1"
  table = {"recipe": recipe, "arch": arch, "metric": metric}
  stem, block = {"base": "none"}.get(arm, arm), {}
  if arm.startswith("sa="):
    sides = dict(pair.split("=") for pair in arm.split(","))
    stem, block = "none", {"block_ln_kw": sides}
  whole = {"seed": seed, "table": table, "model": {"stem_ln": stem, **block}}
  frame = pd.DataFrame(logged)
  frame.index = 50 * (frame.index + 1)
  path = f"{recipe}-{arch}-{arm}-{seed}".replace("/", "")
  done = {"metrics": {metric: value}}
  return runs.Run(path, {**whole, **dict(config)}, frame, done)


def _seeds(arm, arch, base, gains, **kw):
  """Returns a run a seed, of results in percent."""
  return [
    _run(arm, arch, seed, (base + seed + gain) / 100, **kw)
    for seed, gain in enumerate(gains)
  ]


def _models(gains):
  """Returns three runs of base and of dpn, by model; gains are in points."""
  return [
    run
    for arch, of in gains.items()
    for arm, gained in (("base", (0, 0, 0)), ("dpn", of))
    for run in _seeds(arm, arch, 70, gained)
  ]


def _check(made, words):
  """Returns what runs say of the claim that contains these words."""
  [claim] = [claim for claim in claims.CLAIMS if words in claim["says"]]
  return claims.decide(claim, claims.Evidence(runs.frame(made)))


def test_without_runs_the_papers_own_numbers_are_there():
  found, left_out = claims.check(runs.frame([]))
  assert {(f.verdict, f.ours) for f in found} == {("not run", "")}
  assert left_out == {}
  by_hand = {
    "average gain over AugReg": "+1.17 over 6 rows",  # 7 / 6, not 1.4
    "DeiT-S": "+0.30",
    "384 pixels, B/32": "+1.00",
    "93,000 steps of ImageNet-21k all": "5 of 5 above 0",
    "gain 1.7 points": "+1.74 over 5 rows",  # (1.4 + 2.6 + 2.8 + 0.7 + 1.2) / 5
    "930,000 steps": "+0.40",
    "220,000 steps of JFT all": "3 of 3 above 0",
    "gain 0.8 points": "+0.77 over 3 rows",  # (1.4 + 0.3 + 0.6) / 3
    "1,100,000 steps": "+0.50",
    "Natural: B/16": "6 better, 0 equal, 1 worse, by sign",
    "Specialized: B/16": "1 better, 0 equal, 3 worse, by sign",
    "LiT": "3 better, 1 equal, 0 worse, by sign",
    # −0.8 … −1.6 against −0.5, 0, −0.2, −0.1, −0.1: 5.2 / 5.
    "Normalizing without": "+1.04 over 5 rows",
  }
  for words, printed in by_hand.items():
    assert _check([], words).printed == printed


def test_mean_gains():
  made = lambda *gains: _models(dict.fromkeys(AUGREG, gains))
  # Each has s / √3 = 0.1155, their mean 0.1155 / √6 = 0.0471 with 6 · 2 degrees
  # of freedom: 2.179 · 0.0471 = 0.103.
  found = _check(made(1.0, 1.2, 1.4), "average gain over AugReg")
  assert found.verdict == "holds"
  assert found.ours == "+1.20 ± 0.10 over 6 rows"
  assert len(found.paths) == 36
  for gain in (1.2, -1.2):
    some = _models(dict.fromkeys(AUGREG[:5], (gain - 0.2, gain, gain + 0.2)))
    found = _check(some, "average gain over AugReg")
    assert found.verdict == "undecided"  # of six; 2.228 · 0.1155 / √5 = 0.115
    assert found.ours.endswith("± 0.12 over 5 rows; 5 of 6 comparisons run")
  assert _check(made(-1, 0.1, 1), "average gain").verdict == "undecided"
  worse = made(-1.0, -1.2, -1.4)
  assert _check(worse, "average gain").verdict == "does not hold"
  every = _check(made(1.0, 1.2, 1.4), "improves every model")
  assert every.ours.startswith("6 better, 0 equal, 0 worse; 6 of 10")
  assert every.verdict == "undecided"  # of ten
  every = _check(worse, "improves every model")
  assert every.verdict == "does not hold"


@pytest.mark.parametrize("seeds", [1, 2])
def test_one_or_two_runs_count_by_sign(seeds):
  made = [
    _run(arm, "B/32", seed, value + seed / 100, recipe="JFT finetune")
    for arm, value in (("base", 0.5), ("dpn", 0.6))
    for seed in range(seeds)
  ]
  for (steps, res), run in itertools.product(
    itertools.product((220000, 1100000), (224, 384)), list(made)
  ):
    table = {**run.table, "steps": steps, "resolution": res}
    config = {**run.config, "table": table}
    made.append(runs.Run(f"{run.path}{steps}{res}", config, done=run.done))
  found = _check(made[2 * seeds :], "after JFT, B/32")
  assert found.ours == "4 better, 0 equal, 0 worse, by sign"
  assert found.verdict == "holds"


def test_placements_are_tested_together():
  def made(t):
    """Returns base and three placements, one with this t statistic."""
    wave = np.array([-1.0, 0.0, 1.0]) * np.sqrt(3)
    arms = {"sa=post,mlp=pre": wave + t, "sa=pre,mlp=post": wave}
    arms["sa=post,mlp=post"] = wave - 1
    base = _seeds("base", "B/16", 9, (0, 0, 0))
    return base + [r for a, g in arms.items() for r in _seeds(a, "B/16", 9, g)]

  words = "No other placement"
  # Student's t with 2 degrees of freedom: P(|t| > 6) = 0.0267, times 3.
  found = _check(made(6.0), words)
  assert found.verdict == "undecided"  # of fifty
  assert found.ours.startswith("0 of 3 significantly better, least p 0.08;")
  # P(|t| > 60) = 0.000278, times 3.
  found = _check(made(60.0), words)
  assert found.verdict == "does not hold"
  won = "1 of 3 significantly better (sa=post,mlp=pre B/16), least p 0.00083"
  assert found.ours.startswith(won)
  single = [run for run in made(6.0) if run.config["seed"] == 0]
  assert _check(single, words).verdict == "undecided"


def test_what_is_not_run_yet_is_not_proved():
  gains = {"B/16": aggregate.estimate([1.0, 1.01, 1.02])}
  assert claims.tested(gains, 2, every=True)[0] == "undecided"
  worse = {"B/16": aggregate.estimate([-1.0, -1.01, -1.02])}
  assert claims.tested(worse, 1, every=False)[0] == "holds"


def test_every_model_must_gain_significantly():
  rest = dict.fromkeys(("S/16", "B/16", "Ti/16", "S/32"), (1, 1.01, 1.02))
  made = lambda gains: _models(rest | {"B/32": gains})
  words = "better on all five"
  assert _check(made((1, 1.01, 1.02)), words).verdict == "holds"
  found = _check(made((-1.0, 0, 1.2)), words)
  assert found.verdict == "undecided"
  assert "(not B/32)" in found.ours
  assert _check(made((-1, -1.01, -1.02)), words).verdict == "does not hold"


def test_instability():
  falling = np.linspace(6.0, 2.0, 40)
  spiky = falling.copy()
  spiky[[20, 30]] += 4.0
  norms = np.ones(40)
  peak = norms.copy()
  peak[20] = 7.0

  def made(loss, l2_grads, results):
    kw = {"loss": falling, "l2_grads": norms}
    dpn = [_run("dpn", "B/32", i, v, **kw) for i, v in enumerate((0.7, 0.71))]
    kw = {"loss": loss, "l2_grads": l2_grads}
    pre = [_run("pre", "B/32", i, v, **kw) for i, v in enumerate(results)]
    return dpn + pre

  words = "before the embedding alone"
  found = _check(made(falling, norms, (0.7, 0.71)), words)
  assert found.verdict == "does not hold"
  found = _check(made(spiky, peak, (0.7, 0.71)), words)
  assert found.verdict == "holds"
  assert found.ours.startswith(
    "pre: 2 spikes a run, largest gradient 7 medians, standard deviation over "
    "seeds 0.71; dpn: 0 spikes"
  )
  # Variances 12.5 and 0.005 points², both of two runs: F = 2500, p = 0.013.
  assert _check(made(falling, norms, (0.7, 0.75)), words).verdict != "holds"
  assert _check(made(falling, norms, (0.2, 0.7)), words).verdict == "holds"
  assert _check(made(spiky, peak, ()), words).ours == "only dpn was run"


def _logged(embedding, blocks=(1.0, 2.0, 3.0)):
  names = [f"block{i:02d}" for i in range(len(blocks))]
  columns = {"embedding": embedding, **dict(zip(names, blocks, strict=True))}
  return {
    f"grad_norm{mean}/{name}": np.broadcast_to(norm, 20)
    for name, norm in columns.items()
    for mean in ("", "_mean")
  }


def test_gradients_of_the_embedding():
  low = np.full(20, 1.0)
  half = np.where(np.arange(20) < 10, 1.0, 9.0)

  def verdicts(base, dpn):
    made = [
      _run("base", "B/16", 0, 0.7, **_logged(base)),
      _run("dpn", "B/16", 0, 0.7, **_logged(dpn)),
    ]
    words = ("far larger", "scales the gradient", "whole course")
    return [_check(made, w) for w in words]

  found = verdicts(8.0, low)
  assert [f.verdict for f in found] == ["holds"] * 3
  assert [f.ours for f in found] == [
    "AugReg B/16: 4 × the median block; above every block in 100% of the rows",
    "AugReg B/16: 0.125 × that of the plain ViT",
    "AugReg B/16: lower in 100% of the rows",
  ]
  found = verdicts(8.0, half)  # higher from the middle on
  want = ["holds", "does not hold", "does not hold"]
  assert [f.verdict for f in found] == want
  assert "lower in 50% of the rows (not so)" in found[2].ours
  assert verdicts(0.5, low)[0].verdict == "does not hold"


def test_settings_and_seeds():
  def made(*seeds, **dpn):
    return [
      _run(arm, "B/16", seed, 0.7, config={"lr": 1.0, **extra})
      for seed in seeds
      for arm, extra in (("base", {}), ("dpn", dpn))
    ]

  same, seeds = "No hyper-parameter", "at least three runs"
  found = _check(made(0, 1), same)
  assert found.ours == "AugReg B/16: the stem alone differs"
  found = _check(made(0, 1, lr=2.0), same)
  assert found.verdict == "does not hold"
  assert found.ours == "AugReg B/16: lr differ (not so)"
  assert _check(made(0, 1), seeds).verdict == "does not hold"
  assert _check(made(0, 1, 2), seeds).verdict == "holds"


@pytest.mark.parametrize("other_seed", [0, 1])
def test_claims_do_not_mix_settings(other_seed):
  logged = {"loss": np.ones(20), "l2_grads": np.ones(20), **_logged(1.0)}
  made = [
    _run(arm, "B/32", seed, 0.7, config={"lr": lr}, **logged)
    for arm in ("base", "dpn", "pre")
    for seed, lr in ((0, 1.0), (other_seed, 2.0))
  ]
  says = [claim["says"] for claim in claims.CLAIMS]
  found = claims.check(runs.frame(made))[0]
  for words in ("far larger", "No hyper-parameter", "before the embedding"):
    [finding] = [f for s, f in zip(says, found, strict=True) if words in s]
    assert finding.verdict == "cannot be checked"
    assert "differ in more than the seed (lr: 1.0, 2.0)" in finding.ours


@pytest.mark.parametrize(
  ("base", "dpn", "says"),
  [
    ("towers/none-s0", "towers/dpn-s0", "the stem alone differs"),
    ("a.npz", "a.npz", "the stem alone differs"),
    ("of_dpn/base-s0", "of_dpn/dpn-s0", "the stem alone differs"),
    ("towers/none-s0", None, "model_init differ (not so)"),
    ("towers/none-s0", "longer/dpn-s0", "model_init differ (not so)"),
  ],
)
def test_each_arm_may_start_from_its_own_parameters(base, dpn, says):
  made = [
    _run(arm, "B/16", 0, 0.7, config={"model_init": path})
    for arm, path in (("base", base), ("dpn", dpn))
  ]
  assert _check(made, "No hyper-parameter").ours == f"AugReg B/16: {says}"


def _scales(tmp_path, centre, corners):
  scale = np.ones((8, 8, 3), np.float32)
  scale[2:6, 2:6] = centre
  for rows, cols in itertools.product((slice(0, 2), slice(6, 8)), repeat=2):
    scale[rows, cols] = corners
  kernel = np.zeros((8, 8, 3, 4), np.float32)
  run = _run("dpn", "B/16", 0, 0.7)
  testing.write_run(
    tmp_path,
    config=run.config,
    results={"val/prec@1": 0.7},
    params={"stem/ln0/scale": scale.ravel(), "embedding/kernel": kernel},
  )
  return run_files.find([str(tmp_path)])


def test_where_in_the_patch_the_scale_is_high(tmp_path):
  words = "centre and the corners"
  found = _check(_scales(tmp_path / "a", 1.5, 1.25), words)
  assert found.verdict == "holds"
  assert "red 1.50/1.25/1.00, green 1.50/1.25/1.00" in found.ours
  # Of one colour the corners are no higher than the edges.
  other = _scales(tmp_path / "b", 1.5, np.array([1.25, 1.0, 1.25]))
  assert _check(other, words).verdict == "does not hold"


def test_the_command_says_what_no_claim_is_about(tmp_path, capsys):
  for arm in ("dpn", "strange"):
    run = _run(arm, "B/16", 0, 0.7)
    results = {"val/prec@1": 0.7}
    testing.write_run(tmp_path / arm, config=run.config, results=results)
  for form in ("text", "md", "csv", "html"):
    command.main([str(tmp_path), "--format", form])
    out = capsys.readouterr().out
    assert "not run" in out
    assert "no claim is about AugReg, strange" in out or form == "csv"
    assert "about AugReg, dpn" not in out
  command.main([str(tmp_path), "-o", str(tmp_path / "c.md"), "--format", "md"])
  assert (tmp_path / "c.md").read_text("utf-8").startswith("### What the paper")
