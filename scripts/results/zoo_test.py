"""The table of the zoo: costs counted, rates chosen, optimizers apart."""

import pytest

from dpn.configs import norm_zoo
from dpn.scripts import conftest as testing
from dpn.scripts.results import aggregate, render, runs, zoo


def _run(accuracy, method="base", optimizer="adamw", seed=100, lr=1e-3):
  test = seed < 100
  arg = f"data=digits,data_dir=x,method={method},optimizer={optimizer}"
  arg += f",seed={seed},lr={lr},test={test}"
  config = norm_zoo.get_config(arg).to_dict()
  metric = config["table"]["metric"]
  done = {"step": 600, "metrics": {metric: accuracy}, "images_per_sec": 100.0}
  done["images_per_sec"] /= 1 if method == "base" else 2
  return runs.Run(f"{method}-{optimizer}-{lr}-{seed}", config, done=done)


def test_rates_costs_and_gains():
  found = [
    _run(0.5, lr=3e-4),
    _run(0.6, lr=1e-3),
    *(_run(accuracy, lr=3e-3) for accuracy in (0.3, 0.7)),
    *(_run(0.55 + 0.01 * i, seed=i) for i in range(3)),
    *(_run(0.60 + 0.01 * i, "derf+dpn", seed=i) for i in range(3)),
    _run(0.3, "derf+dpn", "muon", lr=3e-3),
  ]
  (table,) = zoo.build(runs.frame(found))
  base, derf = (row for _, row in table.frame.iterrows())
  assert (base["method"], derf["method"]) == ("base", "derf+dpn")
  # Per block 2 norms with alpha and shift; one at the end; LN0, LN1.
  extra = 2 * (4 * 2 + 1) + 2 * (8 * 8 * 3 + 64)
  counted = [int(r["parameters"].replace(",", "")) for r in (base, derf)]
  assert counted[1] - counted[0] == extra
  assert derf["images/s"] == "0.50"
  assert base["adamw rate"] == "0.001"
  assert base["adamw sensitivity"] == "10.0 / 10.0"
  assert derf["muon rate"] == "0.003"
  assert derf["muon sensitivity"] == "– / –"
  gain = derf["adamw − base"]
  assert isinstance(gain, aggregate.Estimate)
  assert gain.mean == pytest.approx(5)
  assert derf["muon [%]"] == aggregate.NOT_RUN
  page = testing.Page(render.page("Zoo", render.html(table)))
  for tag, rows in ("th", 1), ("td", 2):
    keys = [attrs.get("class") for name, attrs in page.tags if name == tag]
    assert keys == (5 * ["key"] + (len(base) - 5) * [None]) * rows
  (dots,) = (ax for ax in zoo.draw(runs.frame(found)).axes if ax.get_title())
  assert dots.get_title() == "digits, adamw"
  assert [text.get_text() for text in dots.get_yticklabels()] == ["derf+dpn"]
  assert dots.lines[0].get_xdata() == pytest.approx([5])


def test_other_runs_are_none_of_the_zoo():
  config = {"table": {"recipe": "ImageNet-1k", "arch": "B/16", "arm": "base"}}
  frame = runs.frame([runs.Run("a", config)])
  with pytest.raises(ValueError, match=r"norm_zoo.*none given"):
    zoo.build(frame)
