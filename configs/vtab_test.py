"""VTAB's tasks: every one makes the input and the label it should."""

import cv2
import numpy as np
import pytest

from dpn.configs import vtab
from dpn.input_pipeline import conftest as testing
from dpn.input_pipeline import pp

# Classes as in arXiv 1910.04867, Table 3 and its section on the tasks; what a
# made-up example holds, and the class that makes.
LABEL = ({"label": 1}, 1)
CLEVR = {
  "objects": {
    "size": np.zeros(5, int),
    "pixel_coords": np.array([[0, 0, z] for z in (9.2, 8.7, 12, 11, 13)]),
  }
}
KITTI = {
  "objects": {
    "type": np.array([3, 0, 1]),  # a pedestrian, nearer than car and van
    "location": np.array([[0, 0, 2.0], [0, 0, 15.0], [0, 0, 30.0]]),
  }
}
TASKS = {
  **{"Caltech101": (102, *LABEL), "CIFAR-100": (100, *LABEL)},
  **{"DTD": (47, *LABEL), "Flowers102": (102, *LABEL), "Pets": (37, *LABEL)},
  **{"Sun397": (397, *LABEL), "SVHN": (10, *LABEL), "Camelyon": (2, *LABEL)},
  **{"EuroSAT": (10, *LABEL), "Resisc45": (45, *LABEL)},
  "Retinopathy": (5, *LABEL),
  "Clevr-Count": (8, CLEVR, 2),  # from three objects on
  "Clevr-Dist": (6, CLEVR, 2),  # nearest 8.7: between 8.5 and 9
  "DMLab": (6, *LABEL),
  "dSpr-Loc": (16, {"label_x_position": 31}, 15),
  "dSpr-Ori": (16, {"label_orientation": 20}, 8),
  "KITTI-Dist": (4, KITTI, 1),  # nearest vehicle 15: between 8 and 20
  "sNORB-Azim": (18, {"label_azimuth": 17}, 17),
  "sNORB-Elev": (9, {"label_elevation": 8}, 8),
}


@pytest.mark.parametrize("task", TASKS)
def test_a_task(task):
  classes, features, label = TASKS[task]
  rng = np.random.default_rng(0)
  image = testing.jpeg(rng, 60, 90)
  if task.startswith("dSpr"):  # half of it 0, half of it 1
    pixels = np.zeros((64, 64, 1), np.uint8)
    pixels[:, 32:] = 1
    image = cv2.imencode(".png", pixels)[1].tobytes()
  for kind in vtab.PP:
    config = vtab.get_config(f"task={task},init=a.npz,pp={kind},test")
    assert config.num_classes == classes
    assert config.input.data.split == "train[:800]"
    pp_eval = config.evals.test.pp_fn
    assert config.evals.minival.pp_fn == pp_eval
    for text in (config.input.pp, pp_eval):
      made = pp.make(text)({"image": image, **features}, rng)
      assert made["image"].shape == (224, 224, 3)
      assert np.flatnonzero(made["labels"]).tolist() == [label]
      assert made["labels"].shape == (classes,)
      if task.startswith("dSpr"):
        assert (made["image"].min(), made["image"].max()) == (-1, 1)
      assert np.abs(made["image"]).max() <= 1
  table = {"recipe": "VTAB, pp crop_flip", "arch": "B/16", "arm": "dpn"}
  table |= {"task": task, "candidate": "lr=0.0003", "metric": "test/prec@1"}
  assert config.table.to_dict() == table


def test_what_validates():
  get = lambda arg: vtab.get_config(f"init=a.npz,{arg}")
  split = lambda arg: get(arg).evals.minival.data.split
  # arXiv 1910.04867's code: its own validation split, or a part of another.
  assert split("task=DTD") == "validation[:200]"
  assert split("task=CIFAR-100") == "train[45000:45200]"  # of 90% and 10%
  assert split("task=Resisc45") == "train[18900:19100]"  # 60%, 20%, 20%
  assert split("task=sNORB-Elev") == "test[:200]"  # halves
  assert split("task=DTD,minival=train") == "train[800:1000]"
  config = get("task=DTD,minival=train,res=384")
  assert config.table.recipe == "VTAB, res 384, minival train"
  assert "resize(384)" in config.input.pp


def test_preprocessing():
  plain = vtab.get_config("task=DTD,init=a.npz")
  # The benchmark's: a resize, nothing random.
  assert plain.input.pp == plain.evals.minival.pp_fn
  assert plain.input.pp.startswith("decode|resize(224)|value_range(-1, 1)|")
  assert "test" not in plain.evals
  random = {
    task: vtab.get_config(f"task={task},init=a,pp=crop_flip").input.pp
    for task in vtab.TASKS
  }
  crops = {task for task, text in random.items() if "random_crop(224)" in text}
  flips = {task for task, text in random.items() if "flip_lr" in text}
  # What a crop or a flip would change the answer of.
  assert set(TASKS) - crops == {
    *("Clevr-Count", "Clevr-Dist", "DMLab", "KITTI-Dist", "dSpr-Loc")
  }
  assert set(TASKS) - flips == {"dSpr-Loc", "dSpr-Ori", "sNORB-Azim"}


def test_the_sweep_is_the_papers():
  assert list(vtab.TASKS) == list(TASKS)
  arms = vtab.sweep()
  assert len(arms) == 19 * 2 * 2 * 3 * 3
  assert len({arm["cell"] for arm in arms}) == 76
  assert len({(arm["cell"], arm["candidate"]) for arm in arms}) == 228
  [arm] = vtab.sweep("tasks=DTD,variants=B/32,stems=none,lrs=1e-3,seeds=1")
  config = vtab.get_config(arm["arg"])
  assert config.lr == 1e-3
  assert config.model_init == "runs/table1/none_B32-s0/params.safetensors"
  assert arm["candidate"] == config.table.candidate
