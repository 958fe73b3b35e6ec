"""What queries find, on embeddings whose neighbours are known, and drawn."""

import cv2
import numpy as np
import pytest

from dpn import sharding
from dpn.evaluators import retrieval
from dpn.scripts import report, show_retrieval
from dpn.scripts.evaluation import checkpoints
from dpn.scripts.show import command
from dpn.trainers import conftest, loop

TEXTS = [f"{x} for $1, {x} for $2" for x in "abcdefgh"]


def _predict(variables, batch):
  """Embeds images by their pixels, texts by their first byte."""
  zimg = batch["image"].reshape(-1, 8) if "image" in batch else None
  ztxt = variables["table"][batch["text"][:, 0]] if "text" in batch else None
  return zimg, ztxt, {}


@pytest.fixture(name="known")
def _known(tmp_path, monkeypatch):
  """Makes every folder a run on eight images, of one bright pixel each."""
  path = tmp_path / "pairs.npz"
  images = np.eye(8, dtype=np.float32).reshape(8, 2, 4, 1)
  np.savez(path, **{"test/image": images, "test/text": TEXTS})
  evaluator = retrieval.Evaluator(
    _predict,
    mesh=sharding.make_mesh(),
    batch_size=4,
    data={"name": f"arrays:{path}", "split": "test"},
    pp_img="",
    pp_txt="tokenize(2)",
  )
  table = np.zeros((260, 8), np.float32)
  table[4 + ord("a") : 4 + ord("i")] = np.eye(8)
  table[4 + ord("h")] = table[4 + ord("a")]  # "h" is taken for "a"
  variables = {"table": table}
  of_run = lambda path, kind, name: (None, evaluator, variables)
  monkeypatch.setattr(checkpoints, "of_run", of_run)


def _shown(pairs):
  """Returns what was found for each query: its letter, and if it is right."""
  right = lambda item: item.colour == show_retrieval._RIGHT
  return [[(x.text[0], right(x)) for x in items] for _, items in pairs]


@pytest.mark.usefixtures("known")
def test_what_is_found_and_what_is_right():
  by_text, by_image, searched = show_retrieval.search("run")
  assert searched == "8 images, 8 texts"
  for pairs in (by_text, by_image):
    assert [query.text for query, _ in pairs] == TEXTS[1::2]
  shown = _shown(by_text)
  no = lambda letters: [(x, False) for x in letters]
  assert shown[0] == [("b", True), *no("acde")]
  assert shown[3] == no("abcde")  # of equal similarity the first ones
  found = by_text[0][1][0]
  assert np.argwhere(found.image[..., 0]).tolist() == [[0, 1]]
  by_text, by_image, _ = show_retrieval.search("run", [0], ["h", TEXTS[2]])
  assert _shown(by_image) == [[("a", True), *no("hbcd")]]
  assert _shown(by_text) == [no("abcde"), [("c", True), *no("abde")]]


@pytest.mark.usefixtures("known")
def test_the_picture(tmp_path, capsys):
  show_retrieval.main([str(tmp_path / "a"), str(tmp_path / "b")])
  path = tmp_path / "a" / command.RETRIEVAL
  assert f"Wrote {path}." in capsys.readouterr().out
  height, width, _ = cv2.imread(str(path)).shape
  assert (width > 900, height > 2000) == (True, True)
  assert command.PICTURES[path.name] == "scripts.show_retrieval"


@pytest.mark.usefixtures("known")
def test_bad_queries(tmp_path):
  for args, message in (
    (["--images", "8"], "There is no image 8: .* has 8, numbered from 0"),
    (["--images", "-1"], "There is no image -1"),
    (["--texts", " "], "the text is empty"),
  ):
    with pytest.raises(SystemExit, match=message):
      show_retrieval.main([str(tmp_path), *args])


@pytest.mark.slow
def test_a_run_and_its_report(tmp_path):
  config = conftest.contrastive_config()
  config.total_steps = 1
  metric = "zeroshot/new_names_prec@1"
  config.table = {"recipe": "tiny", "arch": "16x1/8", "metric": metric}
  loop.train(config, str(tmp_path / "run"))
  show_retrieval.main([str(tmp_path / "run"), "--texts", "latin letter x"])
  report.main([str(tmp_path), "-o", str(tmp_path / "report.html")])
  page = (tmp_path / "report.html").read_text()
  assert "run/retrieval.png, by scripts.show_retrieval." in page
