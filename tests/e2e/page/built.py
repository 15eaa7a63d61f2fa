"""A small folder that looks like a built page, and the real one where it has been built."""

from __future__ import annotations

from pathlib import Path

import pytest

from puna.server.settings import BUILT_PAGE

SCRIPT = b"console.log('a script that is long enough to be packed');" * 20

needs_page = pytest.mark.skipif(
    not (BUILT_PAGE / "index.html").exists(), reason="the page has not been built (make page)"
)


def made_up_page(folder: Path) -> Path:
    """Write a page with one script, and one picture that is too small to be packed."""
    assets = folder / "assets"
    assets.mkdir(parents=True)
    (folder / "index.html").write_text('<!doctype html><script src="assets/main-ABC.js"></script>')
    (folder / "artifact.html").write_text("<!doctype html><title>artifact</title>")
    (assets / "main-ABC.js").write_bytes(SCRIPT)
    (assets / "icon-ABC.svg").write_text("<svg/>")
    return folder
