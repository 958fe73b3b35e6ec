"""Results class by class, of made-up runs."""

import pytest

from dpn.scripts import conftest as testing
from dpn.scripts import report, tables
from dpn.scripts.results import classes, run_files, runs
from dpn.scripts.show import command

TABLE = {"recipe": "CamVid", "arch": "96x4/8", "metric": "test/miou"}
FOUND = {  # arm → by seed: mean, sky, and car if any picture has one
  "none": [(0.40, 0.90, 0.30), (0.42, 0.92, 0.34)],
  "dpn": [(0.43, 0.91, None), (0.49, 0.95, 0.40)],
}


@pytest.fixture(name="folder")
def _folder(tmp_path):
  for arm, seeds in FOUND.items():
    for seed, (mean, sky, car) in enumerate(seeds):
      row = {"test/miou": mean, "test/pixel_acc": 0.8}
      row |= {"val/iou/sky": 0.1, "test/iou/sky": sky}
      row |= {"test/iou/car": car} if car else {}
      folder = tmp_path / f"{arm}-s{seed}"
      kw = {"stem_ln": arm, "seed": seed, "table": TABLE}
      testing.write_run(folder, results=row, **kw)
  return tmp_path


def test_means_and_paired_differences(folder):
  [table], wrong = classes.per_class(runs.frame(run_files.find([str(folder)])))
  assert wrong == []
  frame = table.frame.set_index("IoU [%]")
  assert list(frame.index) == ["mean", "pixel accuracy", "sky", "car"]
  assert list(frame.columns) == ["base", "dpn", "dpn − base"]
  means = frame.map(lambda cell: cell.mean)
  want = {"mean": [41, 46, 5], "sky": [91, 93, 2], "car": [32, 40, 8]}
  for name, values in want.items():
    assert means.loc[name].tolist() == pytest.approx(values), name
  gain = frame.loc["mean", "dpn − base"]
  # Differences of 3 and 7: t(0.975, 1) * 2.
  assert gain.ci == pytest.approx(12.7062 * 2, rel=1e-4)
  assert (gain.note, frame.loc["car", "dpn"].n) == ("paired", 1)


def test_a_class_of_no_picture_and_a_run_without_numbers(folder):
  for seed, tree in enumerate((None, 0.5)):
    row = {"test/miou": 0.4, "test/iou/sky": 0.5}
    row |= {"test/iou/tree": tree} if tree else {}
    kw = {"stem_ln": "pre", "seed": seed, "table": TABLE}
    testing.write_run(folder / f"pre{seed}", results=row, **kw)
  kw = {"stem_ln": "post", "table": TABLE, "results": {"loss": 1.0}}
  testing.write_run(folder / "a", **kw)  # the first
  frame = runs.frame(run_files.find([str(folder)]))
  [table], [wrong] = classes.per_class(frame)
  assert "post: In" in wrong
  assert "test/miou" in wrong
  shown = table.frame.map(str).set_index("IoU [%]")
  assert shown.loc["tree"].to_list() == ["–", "–", "50.00 (n=1)", "–", "–"]
  assert shown.loc["car", "pre"] == "–"
  assert table.notes == [
    "Classes without a pixel, true or predicted, have no IoU (–)."
  ]


def test_commands_show_them(folder, capsys):
  tables.main([str(folder), "--table", "classes", "--format", "md"])
  row = "| car            | 32.00 (n=2: 30.00, 34.00) |"
  assert row in capsys.readouterr().out
  (folder / "dpn-s0" / command.PREDICTIONS).write_bytes(b"a picture")
  page = folder / "report.html"
  report.main([str(folder), "-o", str(page)])
  shown = testing.Page(page.read_text())
  title = "CamVid 96x4/8: test, class by class"
  assert any(text.endswith(title) for text in shown.text)
  images = [attrs for tag, attrs in shown.tags if tag == "img"]
  [source] = [a["src"] for a in images if "dpn-s0" in a["alt"]]
  assert source == "data:image/png;base64,YSBwaWN0dXJl"
  archive = folder / "all.jsonl"  # whose paths may be a stranger's folders
  archive.write_text(run_files.archive(run_files.find([str(folder)])))
  report.main([str(archive), "-o", str(page)])
  assert "Predictions" not in page.read_text()


def test_an_arm_whose_runs_do_not_agree_leaves_the_others(folder, capsys):
  kw = {"stem_ln": "dpn", "table": TABLE, "results": {"test/miou": 0.5}}
  testing.write_run(folder / "again", **kw)
  page = folder / "report.html"
  with pytest.raises(SystemExit, match=r"dpn: .*have the same seed"):
    report.main([str(folder), "-o", str(page)])
  assert "class by class" in page.read_text()
  with pytest.raises(SystemExit) as error:
    tables.main([str(folder), "--table", "classes", "runs"])
  assert "sky" in capsys.readouterr().out
  assert str(error.value).count("CamVid 96x4/8: dpn: ") == 1
