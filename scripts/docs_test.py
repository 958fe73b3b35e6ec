"""The documentation hangs together: pages, links, headings."""

import pathlib
import re

import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
_LINK = re.compile(r"""!?\[[^]]*\]\(([^)\s]+)\)|<img src="([^"]+)\"""")


def _leaves(nav):
  """Yields the pages of a `nav`, at whatever depth."""
  for entry in nav:
    for value in entry.values():
      if isinstance(value, str):
        yield value
      else:
        yield from _leaves(value)


def _prose(path):
  return re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)


def _anchors(path):
  """Returns the anchors that GitHub and mkdocs make of a page's headings."""
  titles = re.findall(r"^#+ (.*)$", _prose(path), re.MULTILINE)
  plain = [re.sub(r"[^\w\s-]", "", title.lower()).strip() for title in titles]
  return {re.sub(r"\s", "-", title) for title in plain}


def test_the_site_names_every_page_once():
  site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
  named = list(_leaves(site["nav"]))
  assert sorted(named) == [str(p.relative_to(DOCS)) for p in PAGES]
  assert site["theme"]["font"] is False  # nothing is loaded from elsewhere


@pytest.mark.parametrize(
  "page", [ROOT / "README.md", *PAGES], ids=lambda p: str(p.relative_to(ROOT))
)
def test_links_lead_somewhere(page):
  for link in map("".join, _LINK.findall(_prose(page))):
    if link.startswith(("https://", "http://")):
      continue
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    assert target.exists(), f"{link} in {page.name}"
    if page != ROOT / "README.md":  # a site has no pages but these
      assert target.is_relative_to(DOCS), link
    if anchor:
      assert anchor in _anchors(target), f"{link} in {page.name}"


@pytest.mark.parametrize("page", sorted((DOCS / "api").glob("*.md")))
def test_the_api_is_of_modules_that_exist(page):
  text = page.read_text("utf-8")
  modules = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
  assert modules
  for module in modules:
    path = ROOT / module.replace(".", "/")
    assert path.with_suffix(".py").exists() or (path / "__init__.py").exists()
  # Folders beside `dpn` are found by their short names, and shown by their own.
  shown = re.findall(r"^      heading: (\S+)$", text, re.MULTILINE)
  short = [m for m in modules if not m.startswith("dpn.")]
  assert shown == [f"dpn.{module}" for module in short]
