"""Folders, archives, pairs and manifests against what was put into them."""

import io
import json
import os
import pickle
import tarfile
import zipfile

import numpy as np
import pytest

from dpn.input_pipeline import sources

_FILES = {"dog/b.PNG": b"1", "dog/a.jpg": b"22" * 700, "cat/c.webp": b"3"}
_EXAMPLES = [
  {"image": b"3", "label": 0, "id": "cat/c.webp"},
  {"image": b"22" * 700, "label": 1, "id": "dog/a.jpg"},
  {"image": b"1", "label": 1, "id": "dog/b.PNG"},
]


def _archive(files, prefix="", mode="w"):
  buffer = io.BytesIO()
  with tarfile.open(fileobj=buffer, mode=mode) as archive:
    for name, content in files.items():
      info = tarfile.TarInfo(prefix + name)
      info.size = len(content)
      archive.addfile(info, io.BytesIO(content))
  return buffer.getvalue()


def _write(root, files):
  """Writes {path: content}; a list is of files that hold their paths."""
  if not isinstance(files, dict):
    files = {path: path.encode() for path in files}
  for path, content in files.items():
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(content)


def _write_split(root, kind, split, names):
  """Writes one-byte images as class folders, or as an archive."""
  files = dict.fromkeys(names, b"x")
  if kind == "tar":
    _write(root, {f"{split}.tar": _archive(files)})
  else:
    _write(root / split, files)


def _open(kind, path, split="train"):
  source = sources.make({"name": f"{kind}:{path}", "split": split})
  return pickle.loads(pickle.dumps(source))


def _all(source):
  return source.read(range(len(source)))


def _check_fails(kind, path, message, split="train", error=ValueError):
  with pytest.raises(error, match=message):
    _open(kind, path, split)


@pytest.mark.parametrize(
  "kind", ["folder", "tar", "./", "photos/train/", "../home/.cache/"]
)
def test_images_by_class(tmp_path, kind):
  files = {**_FILES, "dog/notes.txt": b"4", "dog/._a.jpg": b"5"}
  files |= {"dog/.ipynb_checkpoints/a.jpg": b"6", ".trash/bird/b.jpg": b"7"}
  if kind == "folder":
    _write(tmp_path / "train", files)
  else:
    prefix = "" if kind == "tar" else kind
    _write(tmp_path, {"train.tar": _archive(files, prefix)})
    kind = "tar"
  source = _open(kind, tmp_path)
  assert _all(source) == _EXAMPLES
  assert source.num_classes("label") == 2
  assert source.class_names("label") == ["cat", "dog"]
  where = "train/dog" if kind == "folder" else "train.tar, dog"
  assert source.describe(1) == f"{tmp_path}/{where}/a.jpg"


def test_links_in_a_tar(tmp_path):
  """GNU tar writes the second name of a file as a hard link."""
  folder = tmp_path / "train"
  _write(folder, {"a/0.png": b"zero"})
  (folder / "b").mkdir()
  os.link(folder / "a" / "0.png", folder / "b" / "1.png")
  (folder / "b" / "2.png").symlink_to("../a/0.png")
  with tarfile.open(tmp_path / "train.tar", "w") as archive:
    archive.add(folder, "./")
    elsewhere = tarfile.TarInfo("b/notes.md")  # not an image: it may be broken
    elsewhere.type, elsewhere.linkname = tarfile.SYMTYPE, "/not/here"
    archive.addfile(elsewhere)
  assert _all(_open("tar", tmp_path)) == _all(_open("folder", tmp_path))
  with tarfile.open(tmp_path / "train.tar", "w") as archive:
    archive.add(folder / "b" / "2.png", "b/2.png")
  _check_fails("tar", tmp_path, r"b/2.png is a link to a/0.png, not in it")


def test_files_that_are_twice_in_a_tar(tmp_path):
  """GNU tar stores a name that it is given again as a link to itself."""
  _write(tmp_path / "train", {"a/0.png": b"old", "b/0.png": b"b"})
  with tarfile.open(tmp_path / "train.tar", "w") as archive:
    archive.add(tmp_path / "train", "./")
    for link in ("a/0.png", "b/0.png"):
      itself = tarfile.TarInfo(link)
      itself.type, itself.linkname = tarfile.LNKTYPE, f"./{link}"
      archive.addfile(itself)
    _write(tmp_path / "train", {"a/0.png": b"newer"})
    archive.add(tmp_path / "train" / "a" / "0.png", "a/0.png")
  assert _all(_open("tar", tmp_path)) == _all(_open("folder", tmp_path))


def test_a_tar_that_was_cut_off_meanwhile(tmp_path):
  _write(tmp_path, {"train.tar": _archive({"a/0.png": b"x" * 999})})
  source = _open("tar", tmp_path)
  os.truncate(tmp_path / "train.tar", 700)
  with pytest.raises(ValueError, match=r"train\.tar is shorter than it was"):
    _all(source)


def test_tar_of_tars_as_imagenet_comes(tmp_path):
  inner = {
    "n2.tar": _archive({"n2_1.JPEG": b"x" * 1000, "n2_0.JPEG": b"y"}),
    "n1.tar": _archive({"n1_7.JPEG": b"z"}),
  }
  _write(tmp_path, {"train.tar": _archive(inner)})
  assert _all(_open("tar", tmp_path)) == [
    {"image": b"z", "label": 0, "id": "n1/n1_7.JPEG"},
    {"image": b"y", "label": 1, "id": "n2/n2_0.JPEG"},
    {"image": b"x" * 1000, "label": 1, "id": "n2/n2_1.JPEG"},
  ]


def test_a_flat_tar_beside_labelled_ones(tmp_path):
  flat = _archive({"0.png": b"v", "1.png": b"w"}, prefix="./")
  _write(tmp_path, {"val.tar": flat})
  _write_split(tmp_path, "tar", "train", ["cat/0.png", "dog/0.png"])
  train, val = (_open("tar", tmp_path, split) for split in ("train", "val"))
  assert [x["label"] for x in _all(train)] == [0, 1]
  assert train.class_names("label") == ["cat", "dog"]
  assert [x["image"] for x in _all(val)] == [b"v", b"w"]
  assert "label" not in val[0]
  _write_split(tmp_path, "tar", "train", ["cat/0.png", "1.png"])
  _check_fails("tar", tmp_path, r"/1.png is in no folder, .* 1 images are")


def test_folders_of_one_name_in_a_tar(tmp_path, caplog):
  """As Tiny ImageNet has them, the classes are called `images`."""
  inner = _archive({"a/0.png": b"", "b/0.png": b""})
  _write(tmp_path, {"val.tar": _archive({"n0.tar": inner, "x/n1/0.png": b""})})
  assert _open("tar", tmp_path, "val").class_names("label") == ["n0", "n1"]
  assert "are one class" not in caplog.text
  names = [f"t/n{i}/images/n{i}_{j}.JPEG" for i in range(3) for j in range(2)]
  _write_split(tmp_path, "tar", "train", names)
  assert _open("tar", tmp_path).class_names("label")[0] == "images"
  assert caplog.text.count("are one class") == 1
  assert "train.tar, t/n0/images and t/n1/images are one class" in caplog.text


def test_tar_errors(tmp_path):
  _write(tmp_path, {"val.tar": _archive({"a/readme": b""})})
  _write(tmp_path, {"gz.tar": _archive(_FILES, mode="w:gz")})
  for length in (1200, 2048, 3072):
    _write(tmp_path, {f"cut{length}.tar": _archive(_FILES)[:length]})
    _check_fails(
      "tar",
      tmp_path,
      r"damaged: (it has no end|unexpected end|.*, or cut off)",
      f"cut{length}",
    )
  known = "Unknown split 'train'. Known: cut1200, cut2048, cut3072, gz, val"
  _check_fails("tar", tmp_path, known)
  _check_fails("tar", tmp_path, "No image in .*val.tar", "val")
  message = "no uncompressed tar archive.*decompress it first"
  _check_fails("tar", tmp_path, message, "gz")
  _write(tmp_path / "zipped", {"train.tar.gz": b""})
  _check_fails("tar", tmp_path / "zipped", r"no \.tar .*but: train\.tar\.gz\.")


def test_folder_errors(tmp_path):
  _write(tmp_path, {"train/a/1.jpg": b"", "val/notes.txt": b""})
  _check_fails("folder", tmp_path, "Unknown split 'test'. Known: train", "test")
  _check_fails("folder", tmp_path, "No image in .*/val.*ending in .avif", "val")
  _write(
    tmp_path / "flat", dict.fromkeys(["train/1.jpg", "val/2.jpg", "a/b"], b"")
  )
  _check_fails("folder", tmp_path / "flat", "No image in a folder of", "train")
  _write(tmp_path / "vehicles", {"car/1.jpg": b"", "train/2.jpg": b""})
  source = sources.make({"name": f"folder:{tmp_path}/vehicles", "split": "all"})
  assert source.class_names("label") == ["car", "train"]
  data = {"name": f"folder:{tmp_path}", "split": "train", "data_dir": "/x"}
  with pytest.raises(ValueError, match="data_dir is for TFDS"):
    sources.make(data)


@pytest.mark.parametrize("kind", ["folder", "tar"])
def test_classes_are_numbered_over_all_splits(tmp_path, kind, caplog):
  train = ["ant/1.jpg", "bee/1.jpg", "cat/1.jpg"]
  _write_split(tmp_path, kind, "train", train)
  _write_split(tmp_path, kind, "val", ["ant/2.jpg", "cat/2.jpg", "dog/2.jpg"])
  _write_split(tmp_path, kind, "annotations", ["xml/1.txt"])  # not a split
  val = _open(kind, tmp_path, "val")
  assert [x["label"] for x in _all(val)] == [0, 2, 3]
  assert "no image of 1 of the 4 classes of all splits: bee." in caplog.text
  train = _open(kind, tmp_path)
  assert [x["label"] for x in _all(train)] == [0, 1, 2]
  assert "classes of all splits: dog." in caplog.text
  for source in (train, val):
    assert source.class_names("label") == ["ant", "bee", "cat", "dog"]
  # An archive that changes is read anew; an empty folder is a class.
  _write_split(tmp_path, kind, "val", ["ant/2.jpg", "cat/2.jpg", "eel/2.jpg"])
  assert "eel" in _open(kind, tmp_path).class_names("label")
  if kind == "folder":
    (tmp_path / "train/bat").mkdir()
    assert [x["label"] for x in _all(_open(kind, tmp_path))] == [0, 2, 3]


@pytest.mark.parametrize("kind", ["folder", "tar", "manifest"])
def test_slices_are_random_and_always_the_same(tmp_path, kind):
  names = [f"c{label}/{i}.jpg" for label in range(10) for i in range(10)]
  path = tmp_path
  if kind == "manifest":
    _write(tmp_path, dict.fromkeys(names, b"x"))
    rows = [f"{name},{name[:2]},train" for name in names]
    path = tmp_path / "list.csv"
    path.write_text("\n".join(["path,label,split", *rows]))
  else:
    _write_split(tmp_path, kind, "train", names)
  part = _open(kind, path, "train[:5%]")
  # If another NumPy draws others, `shuffled` must be kept from changing.
  ids = [example["id"] for example in _all(part)]
  assert ids == ["c8/2.jpg", "c3/6.jpg", "c2/0.jpg", "c0/5.jpg", "c9/3.jpg"]
  assert part[1] == {"image": b"x", "label": 3, "id": "c3/6.jpg"}
  assert part.describe(1).endswith("c3/6.jpg")
  assert part.name.endswith("[0:5] at random")
  train, held_out = (_all(_open(kind, path, f"train[{x}]")) for x in _HALVES)
  assert len({x["label"] for x in train}) == 10
  assert len({x["label"] for x in held_out}) > 4
  both = _all(_open(kind, path, "train[90%:]+train[:90%]"))
  assert both == held_out + train
  assert sorted(x["id"] for x in both) == names
  whole = _open(kind, path, "train[0:100]")
  assert [x["id"] for x in _all(whole)] == names


_HALVES = (":90%", "90%:")


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
  _write(tmp_path, [f"{images}/training/{name}.jpg" for name in names])
  _write(tmp_path, [f"{masks}/training/{name}.png" for name in names])
  others = ["training/readme.txt", "training/.hidden.jpg", "validation/x.JPG"]
  _write(tmp_path, [f"{images}/{name}" for name in others])
  _write(tmp_path, [f"{masks}/validation/x.bmp", "objectInfo150.txt"])
  source = _open("pairs", tmp_path, "training")
  assert _all(source) == [
    {
      "image": f"{images}/training/{name}.jpg".encode(),
      "annotation": f"{masks}/training/{name}.png".encode(),
      "id": f"{images}/training/{name}.jpg",
    }
    for name in sorted(names)
  ]
  assert source.describe(0) == f"{tmp_path}/{images}/training/ADE_train_1.jpg"
  assert source.num_classes("annotation") is None
  (example,) = _all(_open("pairs", tmp_path, "validation"))
  assert example["annotation"] == f"{masks}/validation/x.bmp".encode()


def test_pairs_errors(tmp_path):
  _check_fails("pairs", tmp_path, r"holds the folders \[\]. Expected one of im")
  _write(tmp_path, ["images/train/1.jpg", "labels/train/1.png"])
  _write(tmp_path, ["images/train/2.jpg", "labels/train/3.png"])
  message = (
    r"same name in .*images/train \(2 files\) and .*labels/train \(2 files\)"
    r".*Without a partner: images/train/2.jpg, labels/train/3.png"
  )
  _check_fails("pairs", tmp_path, message)
  _check_fails("pairs", tmp_path, r"Unknown split 'val'. Known: train", "val")
  _write(tmp_path, ["images/train/1.png"])
  message = r"images/train/1.jpg and images/train/1.png have the same name"
  _check_fails("pairs", tmp_path, message)
  _write(tmp_path, ["masks/train/1.png"])
  _check_fails("pairs", tmp_path, r"\['images', 'labels', 'masks'\]")


_ROWS = [
  {"path": "x/1.jpg", "size": 3, "label": "dog", "split": "train"},
  {"path": "x/2.jpg", "size": 3, "label": "ant", "split": "test"},
  {"path": "y/1.jpg", "size": 3, "label": "cat", "split": "train"},
]


def _manifest(folder, suffix, rows):
  _write(folder, [row["path"] for row in rows])
  path = folder / f"list.{suffix}"
  if suffix == "csv":
    lines = [",".join(rows[0]), *(",".join(map(str, r.values())) for r in rows)]
  else:
    lines = [*map(json.dumps, rows), ""]
  path.write_text("\n".join(lines))
  return path


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_manifest(tmp_path, suffix):
  path = _manifest(tmp_path, suffix, _ROWS)
  source = _open("manifest", path)
  assert _all(source) == [
    {"image": b"x/1.jpg", "label": 2, "id": "x/1.jpg"},
    {"image": b"y/1.jpg", "label": 1, "id": "y/1.jpg"},
  ]
  assert source.num_classes("label") == 3
  assert source.class_names("label") == ["ant", "cat", "dog"]
  assert source.describe(1) == str(tmp_path / "y/1.jpg")
  assert _open("manifest", path, "test")[0]["label"] == 0
  numbered = [{**row, "label": 4 * i} for i, row in enumerate(_ROWS)]
  source = _open("manifest", _manifest(tmp_path, suffix, numbered))
  assert [x["label"] for x in _all(source)] == [0, 8]
  assert source.num_classes("label") == 9
  assert source.class_names("label") is None


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
@pytest.mark.parametrize(
  ("labels", "classes"), [(["dog", "ant"], ["ant", "dog"]), ([1, 0], 2)]
)
def test_manifest_whose_test_images_have_no_labels(
  tmp_path, suffix, labels, classes
):
  labels = [labels[0], "" if suffix == "csv" else None, labels[1]]
  rows = [{**row, "label": x} for row, x in zip(_ROWS, labels, strict=True)]
  path = _manifest(tmp_path, suffix, rows)
  source = _open("manifest", path)
  assert [x["label"] for x in _all(source)] == [1, 0]
  assert source.classes == {"label": classes}
  _check_fails("manifest", path, "row 2 has no label", "test")
  rows = [{**row, "split": int(row["split"] == "test")} for row in rows]
  path = _manifest(tmp_path, suffix, rows)
  assert [x["label"] for x in _all(_open("manifest", path, "0"))] == [1, 0]
  _check_fails("manifest", path, "row 2 has no label", "1")


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_manifest_of_label_maps(tmp_path, suffix):
  rows = [{**row, "mask": f"m/{i}.png"} for i, row in enumerate(_ROWS)]
  _write(tmp_path, [row["mask"] for row in rows])
  first, second = _all(_open("manifest", _manifest(tmp_path, suffix, rows)))
  example = {"image": b"x/1.jpg", "mask": b"m/0.png", "id": "x/1.jpg"}
  assert first == {**example, "label": 2}
  assert second["mask"] == b"m/2.png"
  for row in rows:
    del row["label"]
  source = _open("manifest", _manifest(tmp_path, suffix, rows))
  assert source[0] == example
  assert source.num_classes("label") is source.class_names("label") is None


_SPACES = {
  "list.csv": (
    'path, split, label \na.jpg , train, "dog"\nb.jpg,train ,dog \n'
    "c.jpg,train,  cat\n"
  ),
  "list.jsonl": (
    '\ufeff{"path": "a.jpg", "split": "train", "label": "dog"}\n'
    '{"path": "b.jpg", "split": "train ", "label": "dog "}\n'
    '{"path": "c.jpg", "split": "train", "label": "cat"}\n'
  ),
}


@pytest.mark.parametrize("name", _SPACES)
def test_stray_spaces_in_a_manifest(tmp_path, name):
  _write(tmp_path, ["a.jpg", "b.jpg", "c.jpg"])
  (tmp_path / name).write_text(_SPACES[name], encoding="utf-8")
  source = _open("manifest", tmp_path / name)
  assert source.class_names("label") == ["cat", "dog"]
  found = [(x["image"], x["label"]) for x in _all(source)]
  assert found == [(b"a.jpg", 1), (b"b.jpg", 1), (b"c.jpg", 0)]


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("path,label,split\na,1,train", "Unknown split 'val'. Known: train"),
    ("path,label\na,1", "'split'.* not in index.*the columns path, split, and"),
    ("path,split\na.png,train", "split, and label, mask or caption"),
    ("path,label,label ,split\na,1,2,val", "two columns have one name"),
    ("path,split,label,label\na,val,1,2", "two columns have one name"),
    ("path,split,label.1,v,v.1\na,val,1,2,3", "split, and label, mask or cap"),
    ("path,label,split\na,1,val\nb,,val\n", "row 2 has no label"),
    ("path,label,split\na,1,val\nb, ,val\n", "row 2 has no label"),
    ("path,mask,split\na,1,val\nb,,val\n", "row 2 has no mask"),
    ("path,split,caption\na.png,val,\n", "row 1 has no caption"),
    ("path,label,split\na,1,train,\n", "in line 2, saw 4.* needs double"),
    ("path,label,split\na,1,train\nb,1,x,y\n", "Expected 3 fields in line 3"),
    ("path,label,split\na,1,val\n,,train\n", "row 2 has no path"),
    ("path,label,split\na,1,val\nb,x,val", "label 'x' is not an integer"),
    ("path,label,split\na,10.0,val\nb,2.0,val", r"label '10\.0' is not an int"),
    ("[1]", "columns path, split, and label, mask"),
    ("{", "Cannot read"),
    (f"path,label,split\na,{1:9>5000},val", "list.csv: Exceeds"),
    ('{"path": "a", "split": "val", "label": [1]}', "row 1: label must be of"),
    (
      '{"path": "a", "split": "val", "caption": ["x"]}\n'
      '{"path": "a", "split": "val", "caption": 7}',
      r"row 2: caption must be of type str or list\[str\], got 7",
    ),
  ],
)
def test_manifest_errors(tmp_path, text, message):
  path = tmp_path / ("list.csv" if text[0] == "p" else "list.jsonl")
  path.write_text(text)
  _check_fails("manifest", path, message, "val")


def test_a_missing_image_is_named(tmp_path):
  path = tmp_path / "x.jsonl"
  path.write_text(json.dumps({"path": "a\0", "split": "train", "label": 1}))
  with pytest.raises(ValueError, match=r"a\\x00' is no path"):
    _open("manifest", path)[0]
  path = _manifest(tmp_path, "csv", _ROWS)
  (tmp_path / "x/1.jpg").unlink()
  with pytest.raises(OSError, match=r"No such file.*x/1\.jpg"):
    _open("manifest", path)[0]


@pytest.mark.parametrize("name", ["../x.png", "/etc/passwd", "a/../../x.png"])
@pytest.mark.parametrize("column", ["path", "mask"])
def test_a_manifest_names_files_below_its_folder(tmp_path, name, column):
  row = {"path": "a.png", "mask": "b.png", "split": "train"} | {column: name}
  path = _manifest(tmp_path, "csv", [row])
  _check_fails("manifest", path, f"{name}.* not below .*Move the table")


def test_captions_of_a_manifest(tmp_path):
  rows = [
    {"path": "a.png", "split": "train", "caption": ["one", "two"]},
    {"path": "a.png", "split": "test", "caption": "three, 3"},
    {"path": "a.png", "split": "val"},
  ]
  path = _manifest(tmp_path, "jsonl", rows)
  train, test = (_open("manifest", path, s) for s in ("train", "test"))
  assert train[0] == {"image": b"a.png", "id": "a.png", "text": ["one", "two"]}
  assert test[0]["text"] == "three, 3"
  assert train.num_classes("label") is None
  path = tmp_path / "pairs.csv"
  path.write_text('path,label,split,caption\na.png,cat,train,"a cat, asleep"\n')
  both = _open("manifest", path)
  assert (both[0]["label"], both[0]["text"]) == (0, "a cat, asleep")


def test_captions_beside_the_images_of_an_archive(tmp_path):
  def texts(files):
    _write(tmp_path, {"train.tar": _archive(files, "pairs/")})
    return [(x["image"], x["text"]) for x in _all(_open("tar", tmp_path))]

  files = {"2.jpg": b"B", "1.png": b"A", "2.txt": b"two"}
  with pytest.raises(ValueError, match=r"pairs/1\.png has no caption"):
    texts(files)
  files["1.TXT"] = b"\xef\xbb\xbfone\r\n"
  assert texts(files) == [(b"A", b"one"), (b"B", b"two")]
  # Of the same name, but in other folders.
  files = {"a/s/0.png": b"A", "a/s/0.txt": b"of A"}
  files |= {"b/s/0.png": b"B", "b/s/0.txt": b"of B"}
  assert texts(files) == [(b"A", b"of A"), (b"B", b"of B")]


@pytest.mark.parametrize("kind", ["folder", "tar", "parquet", "pairs"])
def test_wrong_paths(tmp_path, kind):
  (tmp_path / "file").write_bytes(b"")
  _check_fails(kind, tmp_path / "file", "Not a dir.*/file", error=OSError)
  _check_fails(kind, "/no/such", "/no/such.*Check the path", error=OSError)


@pytest.mark.parametrize("kind", ["manifest", "arrays"])
def test_wrong_paths_of_files(tmp_path, kind):
  _check_fails(kind, tmp_path, "Is a directory", error=OSError)
  _check_fails(kind, "/no/such.csv", "/no/such.*Check", error=OSError)


def test_classes_may_have_folders_within(tmp_path):
  files = {"Apple/a.png": b"0", "Apple/Golden/Red/b.png": b"1"}
  _write(tmp_path, files | {"Pear/William/c.png": b"2"})
  (tmp_path / "Pear" / "William" / "again").symlink_to("..")
  (tmp_path / "Pear" / "all").symlink_to("..")
  found = [
    (x["id"], x["label"]) for x in _all(_open("folder", tmp_path, "all"))
  ]
  assert found == [
    *(("Apple/a.png", 0), ("Apple/Golden/Red/b.png", 0)),
    ("Pear/William/c.png", 1),
  ]


def test_hostile_archives(tmp_path):
  whole = _archive({f"a/{i}.png": b"x" for i in range(6)})
  for block in range(12):  # a header, and what it is of, for each file
    damaged = bytearray(whole)
    damaged[512 * block + 20] ^= 1
    _write(tmp_path, {"train.tar": bytes(damaged)})
    if block % 2:  # bytes of an image have no checksum
      assert len(_open("tar", tmp_path)) == 6
    else:
      _check_fails("tar", tmp_path, "damaged")
  deep = b""
  for _ in range(1200):
    entry = tarfile.TarInfo("a.tar")
    entry.size = len(deep)
    deep = entry.tobuf() + deep + bytes(1024)
  _write(tmp_path, {"train.tar": deep})
  _check_fails("tar", tmp_path, "damaged or hostile")
  entry.name, entry.size = "a/0.png", 2**62
  _write(tmp_path, {"train.tar": entry.tobuf(tarfile.GNU_FORMAT)})
  _check_fails("tar", tmp_path, "a/0.png is sparse, or cut off")
  entry.name, entry.size, entry.type = "b.tar", 0, tarfile.SYMTYPE
  _write(tmp_path, {"train.tar": entry.tobuf() + bytes(1024)})
  _check_fails("tar", tmp_path, "b.tar is a link to an archive")


@pytest.mark.parametrize("kind", ["folder", "manifest", "arrays", "tar"])
def test_pipes_do_not_hang(tmp_path, kind):
  path = tmp_path / {"folder": "train/a/0.png"}.get(kind, "train.tar")
  path.parent.mkdir(parents=True, exist_ok=True)
  os.mkfifo(path)
  with pytest.raises(ValueError, match="neither a file nor a folder"):
    _all(_open(kind, tmp_path if kind in ("folder", "tar") else path))


def test_numbers_beyond_memory(tmp_path):
  (tmp_path / "x.csv").write_text("path,split,label\na.png,train," + "9" * 23)
  _check_fails("manifest", tmp_path / "x.csv", "damaged or hostile.*Overflow")
  header = {"descr": "<f8", "fortran_order": False, "shape": (2**39,)}
  content = io.BytesIO()
  np.lib.format.write_array_header_1_0(content, header)
  with zipfile.ZipFile(tmp_path / "x.npz", "w") as file:
    file.writestr("train/image.npy", content.getvalue())
  _check_fails("arrays", tmp_path / "x.npz", "larger than the memory")
  np.savez_compressed(tmp_path / "x.npz", **{"train/x": np.zeros(10**7)})
  _check_fails("arrays", tmp_path / "x.npz", "80,000,.* more than 200 times")
