"""Parquet in the hub's layout, written here as `datasets` writes it."""

import collections
import itertools
import json
import pickle
import threading

import numpy as np
import pytest

from dpn.evaluators import retrieval
from dpn.input_pipeline import conftest as testing
from dpn.input_pipeline import pipeline, sources
from dpn.input_pipeline.sources import parquet as parquet_source
from dpn.input_pipeline.text import tokenizers

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def _write(path, first, size, group):
  path.parent.mkdir(exist_ok=True, parents=True)
  rows = range(first, first + size)
  table = pyarrow.table(
    {
      "image": [{"bytes": b"%d" % i, "path": f"{i}.jpg"} for i in rows],
      "label": [i % 3 for i in rows],
      "caption": [f"no {i}" for i in rows],
    }
  )
  features = {
    "image": {"_type": "Image"},
    "label": {"names": ["a", "b", "c"], "_type": "ClassLabel"},
    "caption": {"dtype": "string", "_type": "Value"},
  }
  table = table.replace_schema_metadata(
    {"huggingface": json.dumps({"info": {"features": features}})}
  )
  parquet.write_table(table, path, row_group_size=group)


def _write_rows(folder, *rows):
  table = pyarrow.Table.from_pylist([*rows])
  parquet.write_table(table, folder / "train.parquet")


def _open(folder, split="train"):
  return sources.make({"name": f"parquet:{folder}", "split": split})


@pytest.mark.parametrize(
  "files",
  [
    ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"],
    ["train-00000-of-00002-ab12.parquet", "train-00001-of-00002-cd34.parquet"],
    ["train/0000.parquet", "train/0001.parquet"],
  ],
)
def test_rows(tmp_path, files):
  _write(tmp_path / files[0], 0, 7, group=3)
  _write(tmp_path / files[1], 7, 4, group=2)
  test = files[1].replace("train", "test").replace("1-of-00002", "0-of-00001")
  _write(tmp_path / test, 100, 1, group=1)
  source = pickle.loads(pickle.dumps(_open(tmp_path)))
  assert len(source) == 11
  for i in (10, 0, 6, 7, 3, 2, 8, 9):
    row = {"image": b"%d" % i, "label": i % 3, "caption": f"no {i}"}
    assert source[i] == row
  assert source.num_classes("label") == 3
  assert source.class_names("label") == ["a", "b", "c"]
  assert source.num_classes("caption") is None
  part = _open(tmp_path, "train[-1:]+test")
  # The last of NumPy's permutation(11), seed 0.
  assert [row["image"] for row in part.read([0, 1])] == [b"1", b"100"]
  with pytest.raises(ValueError, match=r"Unknown split 'val'. Known: test, tr"):
    _open(tmp_path, "val")


def test_a_folder_of_several_splits(tmp_path):
  for split in ("train", "test"):
    _write(tmp_path / f"plain/{split}-00000-of-00001.parquet", 0, 2, group=2)
  with pytest.raises(ValueError, match=r"test, train\. Give that folder: parq"):
    _open(tmp_path, "plain")
  assert len(_open(tmp_path / "plain")) == 2
  file = tmp_path / "plain/train-00000-of-00001.parquet"
  file.rename(tmp_path / "plain/train-00000-of-00002.parquet")
  with pytest.raises(ValueError, match=r"one of 2 files, .*the first is 00001"):
    _open(tmp_path / "plain")
  table = pyarrow.table({"label": [0]})
  parquet.write_table(table, tmp_path / "plain/train-00001-of-00002.parquet")
  with pytest.raises(ValueError, match=r"00001-of.* names other classes than"):
    _open(tmp_path / "plain")


def test_a_folder_of_arrow_files(tmp_path):
  (tmp_path / "train").mkdir()
  (tmp_path / "train/data-00000-of-00001.arrow").touch()
  with pytest.raises(ValueError, match=r"no \.parquet file.*that is Arrow"):
    _open(tmp_path)


def test_captions(tmp_path):
  """One for each image, or several, as far as a batch for two towers."""
  image = {"bytes": testing.png(np.zeros((4, 4))), "path": None}
  several = [["a0"], ["a1", "b1"], ["a2"], ["a3", "b3"]]
  rows = [
    {"image": image, "caption": f"no {i}", "several": texts}
    for i, texts in enumerate(several)
  ]
  _write_rows(tmp_path, *rows)
  decode = tokenizers.make("bytes").decode
  for op, possible in (
    ('copy("caption", "text")', {f"no {i}" for i in range(4)}),
    ('choice(inkey="several", outkey="text")', {*itertools.chain(*several)}),
  ):
    spec = f'decode|{op}|tokenize(9)|keep("image", "text")'
    data = {"name": f"parquet:{tmp_path}", "split": "train"}
    made = pipeline.training(
      {"data": data, "pp": spec, "batch_size": 4}, seed=0
    )
    texts = {decode(ids) for ids in next(made.batches())["text"]}
    assert texts <= possible
    assert len(texts) == 4
  captions = retrieval.captions(_open(tmp_path), "several")
  found = [(row["text"], int(row["owner"])) for row in captions.read(range(6))]
  assert found == [(x, i) for i, texts in enumerate(several) for x in texts]


def test_label_maps(tmp_path):
  """Columns as of the hub's scene_parse_150."""
  images = {"image": b"jpeg", "annotation": b"png"}
  files = {k: {"bytes": x, "path": "ADE_train_1"} for k, x in images.items()}
  _write_rows(tmp_path, {**files, "scene_category": 7})
  assert _open(tmp_path)[0] == {**images, "scene_category": 7}


def test_sources_keep_together_what_fits_in_memory(tmp_path, monkeypatch):
  _write(tmp_path / "train.parquet", 0, 40, group=4)
  read, reads = parquet.ParquetFile.read_row_group, []
  here = threading.get_ident()  # threads of earlier tests may still read
  count = lambda x: reads.append(x) if here == threading.get_ident() else None
  monkeypatch.setattr(
    parquet.ParquetFile,
    "read_row_group",
    lambda file, group: count(group) or read(file, group),
  )
  # Of ten groups, one round after the other: some fit, or all.
  for budget, expected in ((400, [*range(10)] * 2), (10**9, [*range(10)])):
    monkeypatch.setattr(parquet_source, "_budget_bytes", lambda b=budget: b)
    monkeypatch.setattr(parquet_source, "_TABLES", collections.OrderedDict())
    reads.clear()
    for source in (_open(tmp_path), _open(tmp_path)):
      assert [source[i]["label"] for i in range(40)] == [
        i % 3 for i in range(40)
      ]
    assert reads == expected
    halves = _open(tmp_path, "train[:50%]+train[50%:]")
    assert sum(x["label"] for x in halves.read(range(40))) == 39
    assert (reads == expected) == (budget > 400)
    kept = sum(table.nbytes for table, _ in parquet_source._TABLES.values())
    assert 0 < kept <= budget
  _write(tmp_path / "train.parquet", 1, 40, group=4)
  assert _open(tmp_path)[0]["label"] == 1  # not what was kept of the old file


@pytest.mark.parametrize(
  "metadata",
  [
    "{",
    "[" * 100_000,
    '{"info": []}',
    '{"info": {"features": {"label": {"_type": "ClassLabel"}}}}',
  ],
)
def test_metadata_damaged(tmp_path, metadata):
  table = pyarrow.table({"label": [0]})
  table = table.replace_schema_metadata({"huggingface": metadata})
  parquet.write_table(table, tmp_path / "train.parquet")
  message = "'huggingface' in .*train.parquet is damaged"
  with pytest.raises(ValueError, match=message):
    _open(tmp_path)


def test_a_file_that_is_cut_off_is_named_and_a_bomb(tmp_path):
  rows = pyarrow.table({"x": [bytes([i]) * 10**6 for i in range(70)]})
  parquet.write_table(rows, tmp_path / "train.parquet", compression="zstd")
  with pytest.raises(
    ValueError, match=r"train.parquet: it would be 70,0.* 200"
  ):
    _open(tmp_path)
  (tmp_path / "train.parquet").write_bytes(b"PAR1")
  with pytest.raises((ValueError, OSError), match=r"train\.parquet: .*Parquet"):
    _open(tmp_path)


def test_images_that_are_only_paths(tmp_path):
  _write_rows(tmp_path, {"image": {"bytes": None, "path": "a.jpg"}})
  with pytest.raises(ValueError, match=r"'a.jpg' is not in the Parquet file"):
    _open(tmp_path)[0]
