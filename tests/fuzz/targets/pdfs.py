"""PDF documents with damaged bytes and contents: their text, or why there is none."""

from __future__ import annotations

import random
from pathlib import Path

from puna.server.jobs.pdf.limits import SECONDS
from puna.server.jobs.pdf.process import pieces_of
from tests.fuzz.case import Bounds
from tests.fuzz.hostile_bytes import damaged
from tests.server.jobs.pdfs import pdf

BOUNDS = Bounds(seconds=SECONDS, memory=256 << 20)

_CONTENTS = (
    b"BT /F1 12 Tf 72 720 Td (some text) Tj 0 -14 Td [(kerned) -120 (text)] TJ T* (next) ' ET",
    b"q 1 0 0 1 72 720 cm BT /F1 9 Tf 1 0 0 1 0 0 Tm <48656C6C6F> Tj ET Q",
    b"BI /W 2 /H 2 /CS /G /BPC 8 ID \x00\x01\x02\x03 EI BT /F1 12 Tf (after a picture) Tj ET",
)


def fuzz(dice: random.Random, folder: Path) -> None:
    pages = ["text"] * dice.choice((1, 1, 2, 20))
    content = dice.choice((None, *_CONTENTS))
    if content is not None and dice.random() < 0.5:
        content = damaged(dice, content)
    document = pdf(pages, stream=content, encrypted=dice.random() < 0.1)
    if dice.random() < 0.7:
        document = damaged(dice, document)
    (folder / "document.pdf").write_bytes(document)
    list(pieces_of(document))
