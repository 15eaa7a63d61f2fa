"""Every relative link in the pages leads to a file and a heading, and every path they name exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "puna"
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(ROOT.glob("demo/**/*.md")),
]
FENCED = re.compile(r"^ *```.*?^ *```$", re.M | re.S)
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.M)
CODE = re.compile(r"`([^`\n]+)`")
#: Tables that commands write, and tests compare with what they were written from.
GENERATED = re.compile(r"<!-- (table|converted): .*?<!-- end of \1 -->", re.S)
#: A path of the repository has one of these endings, or is in one of these folders.
ENDINGS = (".py", ".cpp", ".h", ".mjs")
FOLDERS = {
    *(path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"),
    "bench", "csrc", "demo", "docs", "src", "tests", "tools",
}  # fmt: skip
#: Where a source file named without its folder may be.
TREES = ("bench", "csrc", "demo", "docs", "src", "tests")
#: Paths of other people's repositories.
OTHERS = {"convert_lora_to_gguf.py", "convert_hf_to_gguf.py"}


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of `page`, as GitHub makes them."""
    text = FENCED.sub("", page.read_text())
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        for heading in HEADING.findall(text)
    }


def broken_links(page: Path, text: str) -> Iterator[str]:
    for path, anchor in LINK.findall(FENCED.sub("", text)):
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield f"{path}#{anchor}"


def is_of_the_repository(name: str) -> bool:
    """Whether text in backticks is meant as a path of this repository."""
    if not re.fullmatch(r"[\w./*-]+", name) or name in OTHERS:
        return False
    first, slash, _ = name.partition("/")
    return name.endswith(ENDINGS) or bool(slash and first in FOLDERS)


def missing_paths(text: str, folder: Path = ROOT) -> Iterator[str]:
    """Yield paths in backticks that exist neither beside the page, in `folder`, nor in the source.

    A name without a folder may be that of a source file anywhere.
    """
    for name in filter(is_of_the_repository, CODE.findall(FENCED.sub("", text))):
        pattern = name.rstrip("/")
        places = [(where, pattern) for where in (ROOT, SOURCE.parent, SOURCE, folder)]
        if "/" not in pattern:
            places += [(ROOT / where, f"**/{pattern}") for where in TREES]
        if not any(any(where.glob(inside)) for where, inside in places):
            yield name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    assert list(broken_links(page, page.read_text())) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_in_backticks_exist(page: Path) -> None:
    assert list(missing_paths(page.read_text(), page.parent)) == []


def test_broken_links_and_missing_paths_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A heading: here\n\n```\n# no heading\n[x](none.md)\n```\n")
    links = "[a](page.md#a-heading-here) [b](#a-heading-here) [c](https://example.com/x#y)"
    assert list(broken_links(page, links)) == []
    assert list(broken_links(page, "[a](none.md) [b](#no-heading)")) == ["none.md#", "#no-heading"]
    named = "`engine/engine.py` `csrc/core/` `docs/*.md` `quads.h` `team/model` `puna ps`"
    assert list(missing_paths(named)) == []
    assert list(missing_paths("`engine/none.py` `none.h` `csrc/*.none`")) == [
        "engine/none.py", "none.h", "csrc/*.none",
    ]  # fmt: skip


def test_pages_have_links_and_paths() -> None:
    texts = [page.read_text() for page in PAGES]
    assert sum(len(LINK.findall(text)) for text in texts) > 100
    assert sum(is_of_the_repository(name) for text in texts for name in CODE.findall(text)) > 100


def test_pages_are_short_enough_to_be_kept_true() -> None:
    pages = [page for page in PAGES if not page.is_relative_to(ROOT / "demo")]
    written = (GENERATED.sub("", page.read_text()) for page in pages)
    assert sum(len(text.split()) for text in written) <= 30_600


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 1200
