"""A small run of segmentation, evaluated, drawn, reported and counted."""

import json

import cv2
import ml_collections
import numpy as np
import pytest

from dpn import metrics, tasks
from dpn.scripts import count, evaluate, fake_data, report, show_predictions
from dpn.scripts.show import command
from dpn.trainers import loop

NAMES = ["dark", "bright"]


def _config(path):
  """Returns a run on images in which bright pixels are of class 1."""
  rng = np.random.default_rng(0)
  arrays = {}
  for split in ("train", "test"):
    coarse = rng.uniform(-1, 1, (16, 4, 6, 1)).round()
    image = np.repeat(np.repeat(coarse, 2, 1), 2, 2)
    labels = (image[..., 0] > 0).astype(np.uint8)
    labels[:, 0] = 255
    arrays[f"{split}/image"] = np.float32(image).repeat(3, -1)
    arrays[f"{split}/labels"] = labels
  np.savez(path, **arrays)
  data = {"name": f"arrays:{path}", "split": "test"}
  return ml_collections.ConfigDict({
    "task": "segmentation",
    "num_classes": 2,
    "total_steps": 30,
    "log_training_steps": 10,
    "model": {"width": 16, "depth": 1, "mlp_dim": 32, "num_heads": 2}
    | {"patch_size": (2, 2), "stem_ln": "post", "stoch_depth": 0.1},
    "input": {"data": {**data, "split": "train"}, "batch_size": 8}
    | {"pp": 'random_crop_with_mask(8)|keep("image", "labels")'},
    "optax_name": "scale_by_adam",
    "lr": 0.02,
    "schedule": {"decay_type": "polynomial", "power": 0.9},
    "evals": {
      "test": {"type": "segmentation", "data": data, "pp_fn": ""}
      | {"window": (8, 8), "stride": (8, 4)}
      | {"class_names": NAMES, "log_steps": 30}
    },
    "table": {"recipe": "maps", "arch": "16x1/2", "metric": "test/miou"},
  })  # fmt: skip


@pytest.mark.slow
def test_train_evaluate_draw_report_count(tmp_path):
  config = _config(tmp_path / "maps.npz")
  run = tmp_path / "run"
  loop.train(config, str(run))
  last = metrics.read(str(run / "metrics.jsonl"))[-1]
  assert last["test/miou"] > 0.9
  row = evaluate.evaluate(config, str(run))
  assert row == {k: v for k, v in last.items() if k[:4] in ("step", "test")}

  show_predictions.main([str(run), "--images", "3", "0"])
  picture = cv2.imread(str(run / command.PREDICTIONS))
  assert picture.shape[:2] > (100, 400)
  assert picture.std() > 20
  names, found = show_predictions.predict(str(run), [3, 0])
  [(index, example, predicted), _] = found
  assert (names, index) == (NAMES, 3)
  with pytest.raises(ValueError, match=r"--images \[-1\]: expected 0 to"):
    show_predictions.predict(str(run), [-1])
  right = predicted[1:] == example["labels"][1:]
  assert right.mean() > 0.9

  report.main([str(tmp_path), "-o", str(tmp_path / "report.html")])
  page = (tmp_path / "report.html").read_text()
  assert "maps 16x1/2: test, class by class" in page
  assert "run/predictions.png, by scripts.show_predictions" in page

  rows = count.count(tasks.make(config), fake_data.spec(config))
  # Of 16 patches; then their logits to 8 rows of 4, and to 8 columns.
  assert rows.loc["head", "FLOPs"] == 2 * 16 * 16 * 2
  assert rows.loc[count.OUTSIDE, "FLOPs"] == 2 * (8 * 4 * 4 + 8 * 8 * 4) * 2


def test_no_run_of_segmentation(tmp_path, capsys):
  with pytest.raises(SystemExit, match="is not the folder of a run"):
    show_predictions.main([str(tmp_path)])
  config = {"input": {}, "evals": {"test": {"type": "classification"}}}
  (tmp_path / "config.json").write_text(json.dumps(config))
  with pytest.raises(SystemExit, match=r"Error: The folder .* has no params"):
    show_predictions.main([str(tmp_path)])
  (tmp_path / "params.safetensors").touch()
  with pytest.raises(SystemExit, match="Unknown evaluator of segmentation"):
    show_predictions.main([str(tmp_path)])
