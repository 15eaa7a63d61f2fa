"""Builds the documentation as a site: `python tools/site.py`, from `make site`.

Pages are docs/ and those beside the README. Links to them are changed to their names on the site; links to
other files of the repository become plain text, because the site has no address of the repository. The
reference comes from the docstrings of `puna.__all__`. Each version has its folder in build/site/versions,
where versions.json, as mike writes it, lists them for the theme's selector.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import puna

ROOT: Final = Path(__file__).resolve().parent.parent
SITE: Final = ROOT / "build" / "site"
PAGES: Final = SITE / "pages"
BUILT: Final = SITE / "html"
VERSIONS: Final = SITE / "versions"
ZENSICAL: Final = ROOT / ".venv-site" / "bin" / "zensical"

#: Pages from outside of docs/, by their names on the site.
ELSEWHERE: Final = {
    "architecture.md": ROOT / "ARCHITECTURE.md",
    "changelog.md": ROOT / "CHANGELOG.md",
    "contributing.md": ROOT / "CONTRIBUTING.md",
    "demo.md": ROOT / "demo" / "README.md",
    "demo-vision.md": ROOT / "demo" / "vision" / "README.md",
    "demo-hearing.md": ROOT / "demo" / "hearing" / "README.md",
}
PICTURES: Final = (".png", ".svg", ".gif", ".webp")
FENCED: Final = re.compile(r"(^ *```.*?^ *```$)", re.M | re.S)
LINK: Final = re.compile(
    r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?!\w+:)(?P<path>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)"
)


def sources() -> dict[str, Path]:
    """Return the files of the site's pages, by their names on it."""
    own = {page.name: page for page in sorted((ROOT / "docs").glob("*.md"))}
    return {"index.md": own.pop("start.md"), **own, **ELSEWHERE}


def linked(source: Path, text: str, names: dict[Path, str]) -> str:
    """Return the text of page `source` with links that lead to pages and pictures of the site.

    `names` are the site's names of files. A link to any other file becomes its text.
    """

    def changed(found: re.Match[str]) -> str:
        anchor = found["anchor"] or ""
        if not found["path"]:
            return found[0]
        target = (source.parent / found["path"]).resolve()
        if (name := names.get(target)) is not None:
            return f"{found['picture']}[{found['text']}]({name}{anchor})"
        return found["text"]

    parts = FENCED.split(text)
    parts[::2] = [LINK.sub(changed, part) for part in parts[::2]]
    return "".join(parts)


def reference() -> str:
    """Return the page with the docstrings of all that `puna` exports."""
    parts = ["# Reference\n\nAll that `import puna` promises to keep.\n"]
    order = sorted(puna.__all__, key=lambda name: (name != "load", name != "Model", name))
    parts += [f"::: puna.{name}\n" for name in order]
    return "\n".join(parts)


def gather(into: Path) -> None:
    """Write the pages of the site, and the pictures they show, into an empty folder."""
    pages = sources()
    docs = ROOT / "docs"
    shown = [path for path in sorted(docs.rglob("*")) if path.suffix in PICTURES]
    names = {path.resolve(): name for name, path in pages.items()}
    names[ROOT / "README.md"] = "index.md"
    names |= {path.resolve(): str(path.relative_to(docs)) for path in shown}
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    for name, source in pages.items():
        (into / name).write_text(linked(source, source.read_text(), names))
    for path in shown:
        target = into / path.relative_to(docs)
        target.parent.mkdir(exist_ok=True)
        shutil.copy(path, target)
    (into / "reference.md").write_text(reference())


def add_version(built: Path, versions: Path, version: str) -> None:
    """Add the built site to the folder of all versions, as the latest."""
    shutil.rmtree(versions / version, ignore_errors=True)
    shutil.copytree(built, versions / version)
    found = sorted((path.name for path in versions.iterdir() if path.is_dir()), key=_ordered, reverse=True)
    listed = [
        {"version": name, "title": name, "aliases": ["latest"] if name == found[0] else []} for name in found
    ]
    (versions / "versions.json").write_text(json.dumps(listed, indent=1))
    (versions / "index.html").write_text(
        f'<!doctype html><meta charset="utf-8"><title>Puna</title>'
        f'<meta http-equiv="refresh" content="0; url={found[0]}/index.html">'
        f'<a href="{found[0]}/index.html">Puna {found[0]}</a>\n'
    )


def _ordered(version: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"[.+-]", version)]


def build(run: Callable[[list[str]], int]) -> int:
    """Build the site with `run`, which runs a command. Returns its exit status; broken links are errors."""
    gather(PAGES)
    shutil.rmtree(BUILT, ignore_errors=True)
    status = run([str(ZENSICAL), "build", "--clean", "--strict"])
    if status == 0:
        add_version(BUILT, VERSIONS, puna.__version__)
        print(f"Show it with: python3 -m http.server --directory {VERSIONS.relative_to(ROOT)}")
    return status


def main() -> int:
    return build(lambda command: subprocess.run(command, cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    sys.exit(main())
