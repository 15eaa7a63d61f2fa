"""Small PDF files, written by hand."""

from __future__ import annotations

import zlib
from collections.abc import Sequence


def pdf(pages: Sequence[str], *, stream: bytes | None = None, encrypted: bool = False) -> bytes:
    """Return a PDF with a line of text on each page, or with pages that all have the content `stream`."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        content = zlib.compress(stream or f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode())
        objects += [
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R "
            b"/Resources << /Font << /F1 3 0 R >> >> >>" % (5 + 2 * number),
            b"<< /Length %d /Filter /FlateDecode >>\nstream\n%b\nendstream" % (len(content), content),
        ]
    found, places = bytearray(b"%PDF-1.4\n"), []
    for number, body in enumerate(objects, 1):
        places.append(len(found))
        found += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    table = len(found)
    found += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    found += b"".join(b"%010d 00000 n \n" % place for place in places)
    lock = (
        b" /Encrypt << /Filter /Standard /V 1 /R 2 /O (x) /U (x) /P 0 >> /ID [(a) (a)]" if encrypted else b""
    )
    found += b"trailer << /Size %d /Root 1 0 R%b >>\nstartxref\n%d\n%%%%EOF" % (
        len(objects) + 1, lock, table,
    )  # fmt: skip
    return bytes(found)
