"""The pages of the documentation's site, before Zensical builds it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools import site

ROOT = Path(__file__).resolve().parents[1]


def pages_of(nav: list[dict[str, Any]]) -> Iterator[str]:
    for entry in nav:
        for target in entry.values():
            if isinstance(target, str):
                yield target
            else:
                yield from pages_of(target)


def test_every_page_is_in_the_navigation_once() -> None:
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    assert sorted(pages_of(nav)) == sorted([*site.sources(), "reference.md"])


def test_links_to_pages_and_pictures_get_their_names_on_the_site() -> None:
    page = ROOT / "docs" / "x.md"
    names = {ROOT / "ARCHITECTURE.md": "architecture.md", ROOT / "docs" / "a.png": "a.png"}
    text = "[a](../ARCHITECTURE.md#layers) ![p](a.png) [x](#here) [w](https://example.com/x)"
    changed = "[a](architecture.md#layers) ![p](a.png) [x](#here) [w](https://example.com/x)"
    assert site.linked(page, text, names) == changed


def test_links_to_other_files_become_text_and_code_is_left_alone() -> None:
    page = ROOT / "docs" / "x.md"
    text = "[`llama.py`](../src/llama.py)\n```\n[a](b.md)\n```\n"
    assert site.linked(page, text, {}) == "`llama.py`\n```\n[a](b.md)\n```\n"


def test_gathered_pages_lead_only_to_gathered_files(tmp_path: Path) -> None:
    site.gather(tmp_path / "pages")
    found = 0
    for page in (tmp_path / "pages").glob("*.md"):
        for link in site.LINK.finditer(site.FENCED.sub("", page.read_text())):
            found += 1
            assert not link["path"] or (page.parent / link["path"]).is_file(), (page.name, link[0])
    assert found > 100


def test_reference_begins_with_what_is_used_first() -> None:
    lines = [line for line in site.reference().splitlines() if line.startswith(":::")]
    assert lines[:2] == ["::: puna.load", "::: puna.Model"]
    assert len(lines) == len(site.puna.__all__)


def test_versions_are_listed_newest_first(tmp_path: Path) -> None:
    built, versions = tmp_path / "built", tmp_path / "versions"
    built.mkdir()
    (built / "index.html").write_text("new")
    for version in ("0.9.0", "0.10.0", "0.10.0"):
        site.add_version(built, versions, version)
    listed = json.loads((versions / "versions.json").read_text())
    assert [(entry["version"], entry["aliases"]) for entry in listed] == [
        ("0.10.0", ["latest"]),
        ("0.9.0", []),
    ]
    assert "0.10.0/index.html" in (versions / "index.html").read_text()


@pytest.mark.parametrize("status", [0, 1])
def test_a_failed_build_adds_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    for name in ("PAGES", "BUILT", "VERSIONS"):
        monkeypatch.setattr(site, name, tmp_path / name.lower())
    monkeypatch.setattr(site, "ROOT", tmp_path)
    monkeypatch.setattr(site, "sources", dict)
    (tmp_path / "docs").mkdir()

    def run(command: list[str]) -> int:
        site.BUILT.mkdir()
        return status

    assert site.build(run) == status
    assert site.VERSIONS.exists() is (status == 0)
