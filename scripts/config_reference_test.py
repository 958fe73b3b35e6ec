"""docs/config.md is what the code says."""

import pathlib

from dpn.configs import augreg_i1k, camvid, mini_lit
from dpn.models import vit
from dpn.scripts import config_reference

PAGE = pathlib.Path(__file__).parents[1] / "docs/config.md"


def test_the_page_is_up_to_date():
  assert PAGE.read_text("utf-8") == config_reference.reference(), (
    "Run `python -m scripts.config_reference -o docs/config.md`."
  )


def test_fields_of_real_configs_are_on_it():
  page = PAGE.read_text("utf-8")
  for config in (
    augreg_i1k.get_config("variant=B/16,stem_ln=dpn"),
    camvid.get_config(""),
    mini_lit.get_config(""),
  ):
    for key in (*config, *config.input, *config.get("mixup", {})):
      name, _, unit = key.rpartition("_")
      wanted = f"{name}_…" if unit in ("steps", "epochs", "percent") else key
      assert f"`{key}`" in page or f"`{wanted}`" in page, key
    for section in config.evals.values():
      for key in section:
        assert f"`{key}`" in page or key.startswith("log_"), key
  for option in vit.HINTS:
    assert f"| `{option}` |" in page, option


def test_nothing_that_looks_like_html_is_lost():
  outside = PAGE.read_text("utf-8").split("`")[::2]
  assert not [text for text in outside if "<" in text]
