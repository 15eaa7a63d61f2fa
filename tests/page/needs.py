"""The machine's own Chromium."""

from __future__ import annotations

import shutil


def find_chromium() -> str | None:
    """Return the path of Chromium, if it is installed."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
