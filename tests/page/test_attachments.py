"""Files in messages: by button, paste and drop, as text, pictures and PDF."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.e2e.servers import Server
from tests.page.chat import Chat
from tests.page.scripts import SUNNY, asking_for
from tests.page.tabs import GREEDY, Tab, Visitor

pytestmark = [pytest.mark.e2e, pytest.mark.page]

SUN = asking_for("sunny", "How is the weather?")


def png(width: int = 64, height: int = 64, colour: tuple[int, int, int] = (200, 30, 30)) -> bytes:
    """A picture of one colour."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = (b"\0" + bytes(colour) * width) * height
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def pdf(*pages: str) -> bytes:
    """A document of pages with a line of text each."""
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    kids = []
    for text in pages:
        content = f"BT /F1 24 Tf 20 100 Td ({text}) Tj ET".encode()
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content))
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 400 200] /Contents %d 0 R"
            b" /Resources << /Font << /F1 3 0 R >> >> >>" % len(objects)
        )
        kids.append(b"%d 0 R" % len(objects))
    objects[1] = b"<< /Type /Pages /Count %d /Kids [%s] >>" % (len(kids), b" ".join(kids))
    data = b"%PDF-1.4\n"
    places = []
    for number, each in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    size = len(objects) + 1
    return data + (
        b"xref\n0 %d\n0000000000 65535 f \n%strailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n"
        % (size, table, size, len(data))
    )


@pytest.fixture
def chat(visit: Callable[..., Visitor], server: Server) -> Chat:
    return Chat(visit(server, permissions=["clipboard-read", "clipboard-write"]).tab())


@pytest.fixture
def seeing(visit: Callable[..., Visitor], server: Server) -> Chat:
    """A new chat with the bundled model that sees."""
    settings = {"options": GREEDY["options"] | {"num_predict": 20}}
    return Chat(visit(server, "demo-vision:latest", {"puna.defaults": settings}).tab())


def attached(chat: Chat) -> Locator:
    return chat.root.get_by_role("list", name="Attached files").get_by_role("listitem")


def attach(chat: Chat, *files: Path) -> None:
    """Choose files, and wait until they are read."""
    chat.tab.choose(chat.tab.button("Attach pictures, PDF files or text").click, *files)
    expect(attached(chat)).not_to_have_count(0)
    expect(chat.root.locator(".attachment.reading")).to_have_count(0)


def drop(tab: Tab, name: str, type: str, content: bytes) -> None:
    """Drop a file onto the view."""
    transfer = tab.page.evaluate_handle(
        """([name, type, content]) => {
          const transfer = new DataTransfer();
          const bytes = Uint8Array.from(atob(content), (each) => each.charCodeAt(0));
          transfer.items.add(new File([bytes], name, { type }));
          return transfer;
        }""",
        [name, type, base64.b64encode(content).decode()],
    )
    for event in ("dragenter", "dragover", "drop"):
        tab.page.dispatch_event("#main", event, {"dataTransfer": transfer})


def test_text_file_goes_with_the_question_and_opens_again(chat: Chat, tmp_path: Path) -> None:
    file = tmp_path / "notes.py"
    file.write_text("print('été')\r\n")
    attach(chat, file)
    expect(attached(chat)).to_contain_text("notes.py")
    request = chat.asked(lambda: chat.ask(SUN))
    content = request["messages"][0]["content"]
    assert "print('été')" in content
    assert "notes.py" in content
    assert SUN in content
    chat.expect_answer(SUNNY)
    expect(attached(chat)).to_have_count(0)
    chat.tab.reload()
    chat.questions.get_by_role("button", name="notes.py").click()
    expect(chat.tab.dialog("notes.py")).to_contain_text("print('été')")


def test_picture_is_seen_by_a_model_that_sees(server: Server, seeing: Chat, tmp_path: Path) -> None:
    picture = tmp_path / "red.png"
    picture.write_bytes(png())
    attach(seeing, picture)
    expect(attached(seeing).locator("img")).to_be_visible()
    request = seeing.asked(lambda: seeing.ask("What is this?"))
    assert base64.b64decode(request["messages"][0]["images"][0]) == png()
    seeing.expect_rest()
    message = {"role": "user", "content": "What is this?", "images": [png()]}
    options = {**GREEDY["options"], "num_predict": 20}
    same = server.client.chat("demo-vision", [message], options=options).message.content or ""
    assert seeing.text.inner_text().split() == same.split()
    seeing.tab.button("Show red.png large").click()
    expect(seeing.tab.dialog("red.png").locator("img")).to_be_visible()


@pytest.mark.thorough
def test_files_are_dropped_anywhere_on_the_view(chat: Chat) -> None:
    drop(chat.tab, "dropped.txt", "text/plain", b"words that were dropped")
    expect(attached(chat)).to_contain_text("dropped.txt")
    drop(chat.tab, "green.png", "image/png", png(colour=(0, 200, 0)))
    expect(attached(chat)).to_have_count(2)
    expect(chat.root).to_contain_text("does not see pictures")
    chat.tab.button("Remove green.png").click()
    expect(attached(chat)).to_have_count(1)
    request = chat.asked(lambda: chat.ask(SUN))
    assert "words that were dropped" in request["messages"][0]["content"]
    chat.expect_answer(SUNNY)


@pytest.mark.thorough
def test_picture_is_pasted(chat: Chat) -> None:
    chat.tab.page.evaluate(
        """async (content) => {
          const bytes = Uint8Array.from(atob(content), (each) => each.charCodeAt(0));
          const picture = new Blob([bytes], { type: "image/png" });
          await navigator.clipboard.write([new ClipboardItem({ "image/png": picture })]);
        }""",
        base64.b64encode(png()).decode(),
    )
    chat.composer.click()
    chat.tab.press("Control+v")
    expect(attached(chat).locator("img")).to_be_visible()


def test_short_paste_is_text_and_a_paste_of_5_mb_is_a_file(chat: Chat) -> None:
    write = "(text) => navigator.clipboard.writeText(text)"
    chat.composer.click()
    chat.tab.page.evaluate(write, "short")
    chat.tab.press("Control+v")
    expect(chat.composer).to_have_value("short")
    chat.tab.page.evaluate(f"() => ({write})('0123456789'.repeat(524288))")
    chat.tab.press("Control+v")
    expect(attached(chat)).to_contain_text("Pasted text.txt")
    expect(attached(chat)).to_contain_text("5.2 MB")
    expect(chat.composer).to_have_value("short")


@pytest.mark.thorough
def test_document_is_attached_as_text_or_as_pictures_of_its_pages(seeing: Chat, tmp_path: Path) -> None:
    document = tmp_path / "paper.pdf"
    document.write_bytes(pdf("The first page", "The second page"))
    attach(seeing, document)
    expect(attached(seeing)).to_have_count(1)
    seeing.tab.button("As pictures").click()
    expect(attached(seeing).locator("img")).to_have_count(2)
    for _ in range(2):
        attached(seeing).first.get_by_role("button").last.click()
    expect(attached(seeing)).to_have_count(0)
    attach(seeing, document)
    expect(attached(seeing)).to_contain_text("paper.pdf")
    expect(attached(seeing).locator(".icon").first).to_be_visible()
    request = seeing.asked(lambda: seeing.ask("What does it say?"))
    content = request["messages"][0]["content"]
    assert content.index("The first page") < content.index("The second page")
    seeing.expect_rest()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("empty.txt", b"", "is empty"),
        ("sheet.xlsx", b"PK\x03\x04", "neither a picture, a recording, text nor a PDF"),
        ("odd.txt", b"\x00\x01\x02" * 100, "neither a picture, a recording, text nor a PDF"),
        ("broken.png", b"\x89PNG\r\n\x1a\nnothing", "no picture that this browser reads"),
        ("broken.pdf", b"%PDF-1.4 nothing", ""),
    ],
)
@pytest.mark.thorough
def test_file_that_cannot_be_attached_says_why(
    name: str, content: bytes, reason: str, chat: Chat, tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    attach(chat, file)
    expect(attached(chat).get_by_role("alert")).to_contain_text(reason)
    chat.composer.fill(SUN)
    chat.tab.press("Enter")
    expect(chat.root).to_contain_text("Remove the files that cannot be attached first.")
    chat.tab.button(f"Remove {name}").click()
    chat.tab.press("Enter")
    chat.composer.press("Enter")
    chat.expect_answer(SUNNY)


@pytest.mark.thorough
def test_draft_keeps_its_files_over_a_reload(chat: Chat, tmp_path: Path) -> None:
    file = tmp_path / "kept.txt"
    file.write_text("kept words")
    attach(chat, file)
    expect(attached(chat)).to_contain_text("10 B")
    chat.tab.reload()
    expect(attached(chat)).to_contain_text("kept.txt")
    assert "kept words" in json.dumps(chat.asked(lambda: chat.ask(SUN)))
    chat.expect_answer(SUNNY)
