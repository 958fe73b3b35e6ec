"""Archives, pairs and manifests against the files that went into them."""

import io
import json
import os
import pickle
import tarfile

import pytest

from dpn.input_pipeline import sources

_FILES = {
  "dog/b.PNG": b"1",
  "dog/a.jpg": b"22" * 700,
  "cat/c.webp": b"3",
}


def _archive(files, prefix="", mode="w"):
  buffer = io.BytesIO()
  with tarfile.open(fileobj=buffer, mode=mode) as archive:
    for name, content in files.items():
      info = tarfile.TarInfo(prefix + name)
      info.size = len(content)
      archive.addfile(info, io.BytesIO(content))
  return buffer.getvalue()


def _open(kind, path, split="train"):
  return sources.make({"name": f"{kind}:{path}", "split": split})


@pytest.mark.parametrize("prefix", ["", "./", "photos/train/"])
def test_tar(tmp_path, prefix):
  files = {**_FILES, "dog/notes.txt": b"4", "dog/._a.jpg": b"5"}
  (tmp_path / "train.tar").write_bytes(_archive(files, prefix))
  source = pickle.loads(pickle.dumps(_open("tar", tmp_path)))
  assert source.read(range(len(source))) == [
    {"image": b"3", "label": 0, "id": "cat/c.webp"},
    {"image": b"22" * 700, "label": 1, "id": "dog/a.jpg"},
    {"image": b"1", "label": 1, "id": "dog/b.PNG"},
  ]
  assert source.num_classes("label") == 2
  assert source.class_names("label") == ["cat", "dog"]
  assert source.describe(1) == f"{tmp_path}/train.tar, dog/a.jpg"


def test_links_in_a_tar(tmp_path):
  """GNU tar writes the second name of a file as a hard link."""
  folder = tmp_path / "train"
  for name in ("a", "b"):
    (folder / name).mkdir(parents=True)
  (folder / "a" / "0.png").write_bytes(b"zero")
  os.link(folder / "a" / "0.png", folder / "b" / "1.png")
  (folder / "b" / "2.png").symlink_to("../a/0.png")
  with tarfile.open(tmp_path / "train.tar", "w") as archive:
    archive.add(folder, "./")
    elsewhere = tarfile.TarInfo("b/notes.md")  # no image, so nobody minds
    elsewhere.type, elsewhere.linkname = tarfile.SYMTYPE, "/not/here"
    archive.addfile(elsewhere)
  found = _open("tar", tmp_path)
  assert found.read(range(3)) == _open("folder", tmp_path).read(range(3))
  with tarfile.open(tmp_path / "train.tar", "w") as archive:
    archive.add(folder / "b" / "2.png", "b/2.png")
  with pytest.raises(ValueError, match=r"b/2.png is a link to a/0.png, not in"):
    _open("tar", tmp_path)


def test_tar_of_tars_as_imagenet_comes(tmp_path):
  inner = {
    "n2.tar": _archive({"n2_1.JPEG": b"x" * 1000, "n2_0.JPEG": b"y"}),
    "n1.tar": _archive({"n1_7.JPEG": b"z"}),
  }
  (tmp_path / "train.tar").write_bytes(_archive(inner))
  source = _open("tar", tmp_path)
  assert source.read(range(len(source))) == [
    {"image": b"z", "label": 0, "id": "n1/n1_7.JPEG"},
    {"image": b"y", "label": 1, "id": "n2/n2_0.JPEG"},
    {"image": b"x" * 1000, "label": 1, "id": "n2/n2_1.JPEG"},
  ]


def test_tar_errors(tmp_path):
  (tmp_path / "val.tar").write_bytes(_archive({"a/readme": b""}))
  (tmp_path / "gz.tar").write_bytes(_archive(_FILES, mode="w:gz"))
  for length in (1200, 2048, 3072):
    (tmp_path / f"cut{length}.tar").write_bytes(_archive(_FILES)[:length])
  for split, message in (
    (
      "train",
      "Unknown split 'train'. Known: cut1200, cut2048, cut3072, gz, val",
    ),
    ("val", "No image in .*val.tar"),
    ("gz", "no uncompressed tar archive.*decompress it first"),
    ("cut1200", "or is cut off: it has no end"),
    ("cut2048", "or is cut off: it has no end"),
    ("cut3072", "or is cut off: it has no end"),
  ):
    with pytest.raises(ValueError, match=message):
      _open("tar", tmp_path, split)
  (tmp_path / "zipped").mkdir()
  (tmp_path / "zipped" / "train.tar.gz").write_bytes(b"")
  with pytest.raises(ValueError, match=r"no \.tar .*but: train\.tar\.gz\."):
    _open("tar", tmp_path / "zipped")
  with pytest.raises(OSError, match="/no/such"):
    _open("tar", "/no/such")


def _write(root, kind, split, names):
  """Writes one-byte images as class folders, or as an archive."""
  if kind == "tar":
    content = _archive(dict.fromkeys(names, b"x"))
    (root / f"{split}.tar").write_bytes(content)
    return
  for name in names:
    path = root / split / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")


@pytest.mark.parametrize("kind", ["folder", "tar"])
def test_classes_are_numbered_over_all_splits(tmp_path, kind, caplog):
  _write(tmp_path, kind, "train", ["ant/1.jpg", "bee/1.jpg", "cat/1.jpg"])
  _write(tmp_path, kind, "val", ["ant/2.jpg", "cat/2.jpg", "dog/2.jpg"])
  _write(tmp_path, kind, "annotations", ["xml/1.txt"])  # no split: no image
  val = _open(kind, tmp_path, "val")
  assert [val[i]["label"] for i in range(3)] == [0, 2, 3]
  assert "val" in caplog.text
  assert "no image of 1 of the 4 classes of all splits: bee." in caplog.text
  caplog.clear()
  train = _open(kind, tmp_path)
  assert [train[i]["label"] for i in range(3)] == [0, 1, 2]
  assert "classes of all splits: dog." in caplog.text
  for source in (train, val):
    assert source.class_names("label") == ["ant", "bee", "cat", "dog"]
  # An archive that changes is read anew.
  _write(tmp_path, kind, "val", ["ant/2.jpg", "cat/2.jpg", "eel/2.jpg"])
  assert "eel" in _open(kind, tmp_path).class_names("label")


def test_empty_class_folders_are_logged(tmp_path, caplog):
  _write(tmp_path, "folder", "train", ["ant/1.jpg", "cat/1.jpg"])
  (tmp_path / "train" / "bee").mkdir()
  source = _open("folder", tmp_path)
  assert source[1]["label"] == 2
  assert source.num_classes("label") == 3
  assert "no image of 1 of the 3 classes of all splits: bee." in caplog.text


@pytest.mark.parametrize("kind", ["folder", "tar", "manifest"])
def test_slices_are_random_and_always_the_same(tmp_path, kind):
  names = [f"c{label}/{i}.jpg" for label in range(10) for i in range(10)]
  path = tmp_path
  if kind == "manifest":
    _write(tmp_path, kind, ".", names)
    rows = [f"{name},{name[:2]},train" for name in names]
    path = tmp_path / "list.csv"
    path.write_text("\n".join(["path,label,split", *rows]))
  else:
    _write(tmp_path, kind, "train", names)
  part = pickle.loads(pickle.dumps(_open(kind, path, "train[:5%]")))
  # If another NumPy draws others, `shuffled` must be kept from changing.
  ids = [example["id"] for example in part.read(range(5))]
  assert ids == ["c8/2.jpg", "c3/6.jpg", "c2/0.jpg", "c0/5.jpg", "c9/3.jpg"]
  assert part[1] == {"image": b"x", "label": 3, "id": "c3/6.jpg"}
  assert part.describe(1).endswith("c3/6.jpg")
  assert part.name.endswith("[0:5] at random")
  train = _open(kind, path, "train[:90%]")
  held_out = _open(kind, path, "train[90%:]")
  assert len({train[i]["label"] for i in range(90)}) == 10
  assert len({held_out[i]["label"] for i in range(10)}) > 4
  both = _open(kind, path, "train[90%:]+train[:90%]")
  for sources_ in ([train, held_out], [both]):
    found = [s[i]["id"] for s in sources_ for i in range(len(s))]
    assert sorted(found) == names
  whole = _open(kind, path, "train[0:100]")
  assert [whole[i]["id"] for i in range(100)] == names


def _write_paths(root, *paths):
  """Writes files that hold their paths."""
  for path in paths:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(path)


@pytest.mark.parametrize(
  ("images", "masks"),
  [
    ("images", "annotations"),
    ("images", "labels"),
    ("images", "masks"),
    ("img_dir", "ann_dir"),
  ],
)
def test_pairs(tmp_path, images, masks):
  names = ["a/2", "b/1", "ADE_train_1", "ADE_train_2.v2"]
  for name in names:
    _write_paths(tmp_path, f"{images}/training/{name}.jpg")
    _write_paths(tmp_path, f"{masks}/training/{name}.png")
  _write_paths(
    tmp_path, f"{images}/validation/x.JPG", f"{masks}/validation/x.bmp"
  )
  _write_paths(tmp_path, f"{images}/training/readme.txt", "objectInfo150.txt")
  _write_paths(tmp_path, f"{images}/training/.hidden.jpg")
  source = pickle.loads(pickle.dumps(_open("pairs", tmp_path, "training")))
  assert source.read(range(len(source))) == [
    {
      "image": f"{images}/training/{name}.jpg".encode(),
      "annotation": f"{masks}/training/{name}.png".encode(),
      "id": f"{images}/training/{name}.jpg",
    }
    for name in sorted(names)
  ]
  assert source.describe(0) == f"{tmp_path}/{images}/training/ADE_train_1.jpg"
  assert source.num_classes("annotation") is None
  (example,) = _open("pairs", tmp_path, "validation").read([0])
  assert example["annotation"] == f"{masks}/validation/x.bmp".encode()


def test_pairs_errors(tmp_path):
  with pytest.raises(ValueError, match=r"holds the folders \[\]. Expected one"):
    _open("pairs", tmp_path)
  _write_paths(tmp_path, "images/train/1.jpg", "labels/train/1.png")
  _write_paths(tmp_path, "images/train/2.jpg", "labels/train/3.png")
  message = (
    r"same name in .*images/train \(2 files\) and .*labels/train \(2 files\)"
    r".*Without a partner: images/train/2.jpg, labels/train/3.png"
  )
  with pytest.raises(ValueError, match=message):
    _open("pairs", tmp_path)
  with pytest.raises(ValueError, match=r"Unknown split 'val'. Known: train"):
    _open("pairs", tmp_path, "val")
  _write_paths(tmp_path, "images/train/1.png")
  message = r"images/train/1.jpg and images/train/1.png have the same name"
  with pytest.raises(ValueError, match=message):
    _open("pairs", tmp_path)
  _write_paths(tmp_path, "masks/train/1.png")
  with pytest.raises(ValueError, match=r"\['images', 'labels', 'masks'\]"):
    _open("pairs", tmp_path)
  with pytest.raises(OSError, match=r"is not there. Check the path"):
    _open("pairs", tmp_path / "nowhere")


def _manifest(folder, suffix, rows):
  for row in rows:
    (folder / row["path"]).parent.mkdir(exist_ok=True)
    (folder / row["path"]).write_bytes(row["path"].encode())
  path = folder / f"list.{suffix}"
  if suffix == "csv":
    lines = [",".join(rows[0]), *(",".join(map(str, r.values())) for r in rows)]
  else:
    lines = [*map(json.dumps, rows), ""]
  path.write_text("\n".join(lines))
  return path


_ROWS = [
  {"path": "x/1.jpg", "size": 3, "label": "dog", "split": "train"},
  {"path": "x/2.jpg", "size": 3, "label": "ant", "split": "test"},
  {"path": "y/1.jpg", "size": 3, "label": "cat", "split": "train"},
]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_manifest(tmp_path, suffix):
  path = _manifest(tmp_path, suffix, _ROWS)
  source = pickle.loads(pickle.dumps(_open("manifest", path)))
  assert source.read([0, 1]) == [
    {"image": b"x/1.jpg", "label": 2, "id": "x/1.jpg"},
    {"image": b"y/1.jpg", "label": 1, "id": "y/1.jpg"},
  ]
  assert source.num_classes("label") == 3
  assert source.class_names("label") == ["ant", "cat", "dog"]
  assert source.describe(1) == str(tmp_path / "y/1.jpg")
  assert _open("manifest", path, "test")[0]["label"] == 0
  numbered = [{**row, "label": 4 * i} for i, row in enumerate(_ROWS)]
  source = _open("manifest", _manifest(tmp_path, suffix, numbered))
  assert [source[i]["label"] for i in range(2)] == [0, 8]
  assert source.num_classes("label") == 9
  assert source.class_names("label") is None


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_manifest_of_label_maps(tmp_path, suffix):
  rows = [{**row, "mask": f"m/{i}.png"} for i, row in enumerate(_ROWS)]
  _write_paths(tmp_path, *(row["mask"] for row in rows))
  first, second = _open("manifest", _manifest(tmp_path, suffix, rows)).read(
    [0, 1]
  )
  assert first == {
    "image": b"x/1.jpg",
    "mask": b"m/0.png",
    "label": 2,
    "id": "x/1.jpg",
  }
  assert second["mask"] == b"m/2.png"
  for row in rows:
    del row["label"]
  source = _open("manifest", _manifest(tmp_path, suffix, rows))
  del first["label"]
  assert source[0] == first
  assert source.num_classes("label") is source.class_names("label") is None
  rows[1]["mask"] = ""
  with pytest.raises(ValueError, match="row 2 has no mask"):
    _open("manifest", _manifest(tmp_path, suffix, rows))


@pytest.mark.parametrize(
  ("name", "text"),
  [
    (
      "list.csv",
      'path, split, label\na.jpg , train, "dog"\nb.jpg,train ,dog \n'
      "c.jpg,train,  cat\n",
    ),
    (
      "list.jsonl",
      '\ufeff{"path": "a.jpg", "split": "train", "label": "dog"}\n'
      '{"path": "b.jpg", "split": "train ", "label": "dog "}\n'
      '{"path": "c.jpg", "split": "train", "label": "cat"}\n',
    ),
  ],
)
def test_stray_spaces_in_a_manifest(tmp_path, name, text):
  _write_paths(tmp_path, "a.jpg", "b.jpg", "c.jpg")
  (tmp_path / name).write_text(text, encoding="utf-8")
  source = _open("manifest", tmp_path / name)
  assert source.class_names("label") == ["cat", "dog"]
  found = [(x["image"], x["label"]) for x in source.read(range(3))]
  assert found == [(b"a.jpg", 1), (b"b.jpg", 1), (b"c.jpg", 0)]


def test_manifest_errors(tmp_path):
  path = _manifest(tmp_path, "csv", _ROWS)
  with pytest.raises(ValueError, match=r"Unknown split 'val'. Known: test, tr"):
    _open("manifest", path, "val")
  with pytest.raises(OSError, match=r"list.xls"):
    _open("manifest", tmp_path / "list.xls")
  (tmp_path / "x/1.jpg").unlink()
  with pytest.raises(OSError, match=r"No such file.*x/1\.jpg"):
    _open("manifest", path)[0]
  for text, message in (
    (
      "path,label\na,1\n",
      r"'split'.* not in index.*the columns path, split, and label, mask",
    ),
    ("path,label,split\na,1,train\nb,,train\n", "row 2 has no label"),
    ("path,label,split\na,1,train\nb, ,train\n", "row 2 has no label"),
    ("path,label,split\na,1,train,\n", "row 1 has more fields than the head"),
    ("path,label,split\na,1,train\nb,1,x,y\n", "Expected 3 fields in line 3"),
    ("path,label,split\na,1,train\nb,x,train", r"partly numbers \('1'\)"),
    ("path,label,split\na,10.0,train\nb,2.0,train", r"such as '10\.0'\. Exp"),
  ):
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
      _open("manifest", path)
  path = tmp_path / "list.jsonl"
  for text, message in (
    ("[1]", "columns path, split, and label, mask"),
    ("{", "Cannot read"),
  ):
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
      _open("manifest", path)


def test_captions_of_a_manifest(tmp_path):
  (tmp_path / "a.png").write_bytes(b"image")
  rows = [
    {"path": "a.png", "split": "train", "caption": ["one", "two"]},
    {"path": "a.png", "split": "test", "caption": "three, 3"},
  ]
  path = tmp_path / "pairs.jsonl"
  path.write_text("\n".join(map(json.dumps, rows)))
  train, test = (_open("manifest", path, s) for s in ("train", "test"))
  assert train[0] == {"image": b"image", "id": "a.png", "text": ["one", "two"]}
  assert test[0]["text"] == "three, 3"
  assert train.num_classes("label") is None
  path = tmp_path / "pairs.csv"
  path.write_text('path,label,split,caption\na.png,cat,train,"a cat, asleep"\n')
  both = _open("manifest", path)
  assert (both[0]["label"], both[0]["text"]) == (0, "a cat, asleep")
  path.write_text("path,split\na.png,train\n")
  with pytest.raises(ValueError, match="split, and label, mask or caption"):
    _open("manifest", path)
  path.write_text("path,split,caption\na.png,train,\n")
  with pytest.raises(ValueError, match="row 1 has no caption"):
    _open("manifest", path)


def test_captions_beside_the_images_of_an_archive(tmp_path):
  members = {"2.jpg": b"B", "1.png": b"A", "2.txt": b"two"}
  members["1.TXT"] = b"\xef\xbb\xbfone\r\n"

  def write(members):
    (tmp_path / "train.tar").write_bytes(_archive(members, "pairs/"))

  write(members)
  source = _open("tar", tmp_path)
  found = [(x["image"], x["text"]) for x in (source[0], source[1])]
  assert found == [(b"A", b"one"), (b"B", b"two")]
  members.pop("1.TXT")
  write(members)
  with pytest.raises(ValueError, match=r"pairs/1\.png has no caption"):
    _open("tar", tmp_path)
  # Of the same name, but in other folders.
  write(
    {"a/s/0.png": b"A", "a/s/0.txt": b"of A", "b/s/0.png": b"B"}
    | {"b/s/0.txt": b"of B"}
  )
  source = _open("tar", tmp_path)
  found = [(x["image"], x["text"]) for x in (source[0], source[1])]
  assert found == [(b"A", b"of A"), (b"B", b"of B")]
