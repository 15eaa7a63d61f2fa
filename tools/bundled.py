"""Describe what a wheel bundles: `python tools/bundled.py FOLDER`.

Writes `sboms/puna.cdx.json`, a bill of materials in CycloneDX's format (PEP 770), and into
`licenses/third-party` the licences of the page's packages and of the C++ libraries in the extension. The
build runs it, with nothing but Python and nanobind. The same sources give the same bytes.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
_PAGE: Final = ROOT / "src" / "puna" / "server" / "page" / "dist"

_HEADING: Final = re.compile(r"^(\S+) (\d\S*) \((.+)\)\n-{72}$", re.MULTILINE)
_COMMENT: Final = re.compile(r"/\*\*?\n(.*?)\*/", re.DOTALL)


@dataclass(frozen=True)
class Component:
    """A package in the wheel, with its package URL and an SPDX expression of its licence."""

    name: str
    version: str
    url: str
    licence: str

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"type": "library", "bom-ref": self.url, "name": self.name}
        if self.version:
            found["version"] = self.version
        return found | {"purl": self.url, "licenses": [{"expression": self.licence}]}


def page_licences() -> str:
    """Return the packages in the page, each with its version, its licence and the licence's text.

    The page's build writes them. Empty where it was not built.
    """
    return "".join(path.read_text("utf-8") for path in _PAGE.glob("assets/licenses-*.txt"))


def page_components() -> list[Component]:
    """Return the packages in the page; none where it was not built."""
    return [
        Component(name, version, f"pkg:npm/{name.replace('@', '%40')}@{version}", licence)
        for name, version, licence in _HEADING.findall(page_licences())
    ]


def native_components() -> list[Component]:
    """Return the libraries compiled into the extension."""
    version = metadata.version("nanobind")
    return [
        Component("nanobind", version, f"pkg:pypi/nanobind@{version}", "BSD-3-Clause"),
        Component("robin-map", "", "pkg:github/Tessil/robin-map", "MIT"),
        Component("ggml (tables of block types)", "", "pkg:github/ggml-org/ggml", "MIT"),
    ]


def bill_of_materials(project: dict[str, Any], components: list[Component]) -> dict[str, Any]:
    """Return the bill of materials of a wheel of `project`, the table in pyproject.toml."""
    of_puna = Component(
        project["name"],
        project["version"],
        f"pkg:pypi/{project['name']}@{project['version']}",
        project["license"],
    )
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": of_puna.to_json() | {"type": "application"}},
        "components": [each.to_json() for each in sorted(components, key=lambda each: each.name)],
    }


def native_licences() -> dict[str, str]:
    """Return the licences of nanobind and the map in it, by the names of their files."""
    files = metadata.files("nanobind") or []
    found = {
        f"nanobind-{file.name}.txt": file.read_text()
        for file in files
        if file.name.startswith("LICENSE") and ".dist-info" in file.parts[0]
    }
    spec = util.find_spec("nanobind")
    assert spec is not None
    assert spec.origin is not None
    header = next(Path(spec.origin).parent.glob("ext/robin_map/include/tsl/robin_map.h"), None)
    if header is not None and (comment := _COMMENT.search(header.read_text("utf-8"))):
        found["robin-map.txt"] = re.sub(r"^ \* ?", "", comment[1], flags=re.MULTILINE).strip() + "\n"
    return found


def main(folder: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    bill = bill_of_materials(project, [*page_components(), *native_components()])
    (folder / "sboms").mkdir(parents=True, exist_ok=True)
    (folder / "sboms" / "puna.cdx.json").write_text(json.dumps(bill, indent=1) + "\n", "utf-8")
    texts = native_licences()
    if text := page_licences():
        texts["page.txt"] = text
    (folder / "licenses" / "third-party").mkdir(parents=True, exist_ok=True)
    for name, text in sorted(texts.items()):
        (folder / "licenses" / "third-party" / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
