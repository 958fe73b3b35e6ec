"""Parquet in the hub's layout, written here as `datasets` writes it."""

import io
import json
import pickle

import pytest
from PIL import Image

from dpn.evaluators import retrieval
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
  _write(tmp_path / files[1].replace("train", "test"), 100, 1, group=1)
  data = {"name": f"parquet:{tmp_path}", "split": "train"}
  source = pickle.loads(pickle.dumps(sources.make(data)))
  assert len(source) == 11
  for i in (10, 0, 6, 7, 3, 2, 8, 9):
    assert source[i] == {
      "image": b"%d" % i,
      "label": i % 3,
      "caption": f"no {i}",
    }
  assert source.num_classes("label") == 3
  assert source.class_names("label") == ["a", "b", "c"]
  assert source.num_classes("caption") is None
  part = sources.make({**data, "split": "train[-1:]+test"})
  # The last of NumPy's permutation(11), seed 0.
  assert [row["image"] for row in part.read([0, 1])] == [b"1", b"100"]
  with pytest.raises(ValueError, match=r"Unknown split 'val'. Known: test, tr"):
    sources.make({**data, "split": "val"})


def test_a_folder_of_several_splits(tmp_path):
  for split in ("train", "test"):
    _write(tmp_path / f"plain/{split}-00000-of-00001.parquet", 0, 2, group=2)
  with pytest.raises(ValueError, match=r"test, train\. Give that folder: parq"):
    sources.make({"name": f"parquet:{tmp_path}", "split": "plain"})
  data = {"name": f"parquet:{tmp_path}/plain", "split": "train"}
  assert len(sources.make(data)) == 2


def test_captions(tmp_path):
  """One for each image, or several, as far as a batch for two towers."""
  png = io.BytesIO()
  Image.new("RGB", (4, 4)).save(png, "png")
  rows = [
    {
      "image": {"bytes": png.getvalue(), "path": None},
      "caption": f"no {i}",
      "several": [f"a{i}", f"b{i}"][: 1 + i % 2],
    }
    for i in range(4)
  ]
  table = pyarrow.Table.from_pylist(rows)
  parquet.write_table(table, tmp_path / "train.parquet")
  data = {"name": f"parquet:{tmp_path}", "split": "train"}
  decode = tokenizers.make("bytes").decode
  for op, possible in (
    ('copy("caption", "text")', {f"no {i}" for i in range(4)}),
    ('choice(inkey="several", outkey="text")', {"a0", "a1", "b1", "a2"}),
  ):
    spec = f'decode|{op}|tokenize(9)|keep("image", "text")'
    config = {"data": data, "pp": spec, "batch_size": 4}
    made = pipeline.training(config, seed=0)
    batch = next(made.batches())
    texts = {decode(ids) for ids in batch["text"]}
    assert texts <= possible | {"a3", "b3"}
    assert len(texts) == 4
  captions = retrieval.captions(sources.make(data), "several")
  found = [(row["text"], int(row["owner"])) for row in captions.read(range(6))]
  assert found == [
    *(("a0", 0), ("a1", 1), ("b1", 1), ("a2", 2), ("a3", 3), ("b3", 3)),
  ]


def test_label_maps(tmp_path):
  """Columns as of the hub's scene_parse_150."""
  row = {
    "image": {"bytes": b"jpeg", "path": "ADE_train_1.jpg"},
    "annotation": {"bytes": b"png", "path": "ADE_train_1.png"},
    "scene_category": 7,
  }
  parquet.write_table(
    pyarrow.Table.from_pylist([row]), tmp_path / "train.parquet"
  )
  source = sources.make({"name": f"parquet:{tmp_path}", "split": "train"})
  assert source[0] == {
    "image": b"jpeg",
    "annotation": b"png",
    "scene_category": 7,
  }


def test_keeps_what_fits_in_memory(tmp_path, monkeypatch):
  _write(tmp_path / "train.parquet", 0, 40, group=4)
  read, reads = parquet.ParquetFile.read_row_group, []
  monkeypatch.setattr(
    parquet.ParquetFile,
    "read_row_group",
    lambda file, group: reads.append(group) or read(file, group),
  )
  # Of ten groups, one round after the other: some fit, or all.
  for budget, expected in ((400, [*range(10)] * 2), (10**9, [*range(10)])):
    monkeypatch.setattr(parquet_source, "_budget_bytes", lambda b=budget: b)
    reads.clear()
    source = parquet_source.ParquetSource(str(tmp_path), "train")
    for i in (*range(40), *range(40)):
      assert source[i]["label"] == i % 3
    assert reads == expected
    kept = source._table.cache_info().currsize
    assert 0 < kept * source._table(9).nbytes <= budget


@pytest.mark.parametrize(
  ("metadata", "message"),
  [
    ("{", "'huggingface' in .*train.parquet is damaged, expected JSON"),
    ('{"info": []}', r"info must be of type dict, got \[\]"),
    (
      '{"info": {"features": {"label": {"_type": "ClassLabel"}}}}',
      "info.features.label.names is missing",
    ),
  ],
)
def test_metadata_damaged(tmp_path, metadata, message):
  table = pyarrow.table({"label": [0]})
  table = table.replace_schema_metadata({"huggingface": metadata})
  parquet.write_table(table, tmp_path / "train.parquet")
  with pytest.raises(ValueError, match=message):
    sources.make({"name": f"parquet:{tmp_path}", "split": "train"})


def test_images_that_are_only_paths(tmp_path):
  table = pyarrow.table({"image": [{"bytes": None, "path": "a.jpg"}]})
  parquet.write_table(table, tmp_path / "train.parquet")
  source = sources.make({"name": f"parquet:{tmp_path}", "split": "train"})
  with pytest.raises(ValueError, match=r"'a.jpg' is not in the Parquet file"):
    source[0]
  with pytest.raises(OSError, match=r"/no/such"):
    sources.make({"name": "parquet:/no/such", "split": "train"})
