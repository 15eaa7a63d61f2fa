"""PDF documents: their text, and the limits of what reading them may take."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from puna.errors import DocumentError, RequestError, UnavailableError
from puna.server.jobs.documents import File
from puna.server.jobs.pdf import client
from puna.server.jobs.pdf.client import read_pdf
from tests.server.jobs.pdfs import pdf


def test_text_has_its_pages_apart() -> None:
    pytest.importorskip("pypdf")
    assert read_pdf(pdf(["The quick fox", "", "jumps"])) == "The quick fox\n\njumps"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (lambda: b"", "damaged"),
        (lambda: b"hello", "damaged"),
        (lambda: pdf(["x"])[:200], "damaged|no text"),
        (lambda: pdf([""]), "no text"),
        (lambda: pdf(["x"], encrypted=True), "encrypted"),
        (lambda: pdf(["x"] * 601), "601 pages"),
        (lambda: b"x" * ((32 << 20) + 1), "larger than 32 MB"),
        pytest.param(lambda: pdf(["x"], stream=b"(" * (1 << 27)), "", marks=pytest.mark.thorough),
    ],
)
def test_document_that_cannot_be_read_is_refused(data: Any, words: str) -> None:
    pytest.importorskip("pypdf")
    with pytest.raises(DocumentError, match=words):
        read_pdf(data())


def test_without_pypdf_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match=r"pip install 'puna\[pdf\]'"):
        read_pdf(pdf(["x"]))


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ("data:application/pdf;base64,QUJD", "application/pdf"),
        ("data:text/plain;charset=utf-8;base64,QUJD", "text/plain"),
        ("QUJD", "application/pdf"),
    ],
)
def test_data_of_a_file_may_be_a_data_url(given: str, kind: str) -> None:
    file = File.of_data("x", given, lambda text: None)
    assert (file.media_type, base64.b64decode(file.data)) == (kind, b"ABC")


def test_errors_are_the_requests() -> None:
    assert issubclass(DocumentError, RequestError)
