"""Limits of one document: its file, pages and text, and what reading it takes."""

from __future__ import annotations

from typing import Final

MAX_BYTES: Final = 32 << 20
MAX_PAGES: Final = 600
MAX_CHARACTERS: Final = 4_000_000
SECONDS: Final = 30.0
MEMORY_BYTES: Final = 1 << 30
