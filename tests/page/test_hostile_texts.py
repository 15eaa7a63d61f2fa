"""Texts of strangers wherever the page shows them: nothing in them runs, and nothing in them is fetched.

That nothing runs is what every tab watches for (tests/page/tabs.py); here such texts are shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.e2e.servers import Server
from tests.page.chat import Chat
from tests.page.scripts import ANSWERS_TO_ARTEFACTS, HOSTILE, asking_for
from tests.page.sidebar import Sidebar, add_chat
from tests.page.tabs import Tab, Visitor

pytestmark = [pytest.mark.e2e, pytest.mark.page]

NAME = """"><img src=x onerror="window.__pwned='name'">{{7*7}}${7*7}"""
DANGEROUS = (
    "script, style, link, meta, base, iframe, object, embed, form, input, video, audio, svg:not(.icon),"
    " math:not(.katex *)"
)

#: Chromium tells of styles and base addresses in documents that DOMPurify parses, which nobody sees.
PARSED = (
    "^policy: (style-src-(attr|elem)|base-uri) forbids|Applying inline style violates|document's base URI"
)
#: The frame's own policy forbids what a document in it tries, and tells of that.
FORBIDDEN_IN_FRAMES = (
    "^policy: (connect|img)-src|Content Security Policy|Unsafe attempt to initiate navigation"
)


def expect_harmless(part: Locator) -> None:
    """Assert that no element or attribute of what is drawn could run anything."""
    expect(part).to_contain_text("The end of the hostile text.")
    found = part.evaluate(
        """(element, dangerous) => {
          const found = [...element.querySelectorAll(dangerous)].map((each) => each.outerHTML);
          for (const each of element.querySelectorAll("*")) {
            for (const { name, value } of each.attributes) {
              const runs = name.startsWith("on") || /^\\s*(javascript|vbscript|data:text)/i.test(value);
              const fetches = name === "src" || name === "srcset" || name === "srcdoc";
              if (runs || fetches) found.push(`${each.tagName} ${name}=${value}`);
            }
          }
          return found;
        }""",
        DANGEROUS,
    )
    assert found == []


def press_links(part: Locator) -> None:
    """Press everything that a hostile text would have one press, but for links that open elsewhere."""
    for link in part.locator("a:not([target=_blank]), summary").all():
        link.click(force=True)


@pytest.mark.parametrize("when", ["streamed", pytest.param("kept", marks=pytest.mark.thorough)])
def test_hostile_answer_is_harmless(when: str, server: Server, visit: Callable[..., Visitor]) -> None:
    visitor = visit(server)
    visitor.forgive(PARSED)
    if when == "kept":
        id = add_chat(server, HOSTILE, HOSTILE, title=NAME)
        chat = Chat(visitor.tab(f"#/chat/{id}"))
    else:
        chat = Chat(visitor.tab())
        chat.ask(asking_for("hostile"))
        chat.expect_rest()
    expect_harmless(chat.text)
    press_links(chat.text)
    expect(chat.tab.heading).to_be_attached()


@pytest.mark.thorough
def test_hostile_thought_is_harmless(tab: Tab) -> None:
    tab.visitor.forgive(PARSED)
    chat = Chat(tab)
    chat.ask(asking_for("hostile thought"))
    chat.expect_answer("I thought.")
    chat.answer.locator(".thinking-head").click()
    expect_harmless(chat.answer.locator(".thinking-text"))


@pytest.mark.thorough
def test_hostile_call_and_result_are_harmless(tab: Tab) -> None:
    chat = Chat(tab)
    tool = {
        "type": "function",
        "function": {"name": "<img/src=x/onerror=window.__pwned=1>", "parameters": {}},
    }
    chat.settings("Tools").get_by_label("Tools", exact=True).fill(json.dumps([tool]))
    chat.ask(asking_for("hostile call"))
    chat.expect_rest()
    called = chat.answer.locator(".call")
    expect(called).to_contain_text("<img/src=x/onerror=window.__pwned=1>")
    expect(called).to_contain_text("</pre><img src=x")
    chat.answer.locator(".results textarea").fill(HOSTILE)
    tab.button("Send the result").click()
    expect(chat.root.locator("article.tool")).to_contain_text("The end of the hostile text.")
    chat.expect_rest()
    expect(chat.root.locator("article.tool img")).to_have_count(0)


def test_hostile_names_are_harmless_wherever_they_stand(
    server: Server, visit: Callable[..., Visitor], tmp_path: Path
) -> None:
    add_chat(server, NAME, NAME, title=NAME, folder=NAME, tags=[NAME + " tag"], pinned=True)
    server.http.put("/api/puna/presets/" + "%3Cimg%20src=x%20onerror=__pwned=1%3E", json={"settings": {}})
    visitor = visit(server)
    tab = visitor.tab()
    sidebar, chat = Sidebar(tab), Chat(tab)
    expect(sidebar.links).to_contain_text(NAME)
    sidebar.search.fill("onerror")
    expect(sidebar.links.locator("mark").first).to_be_visible()
    sidebar.filter(NAME)
    sidebar.links.click()
    expect(tab.page).to_have_title(f"{NAME} – Puna")
    sidebar.act(NAME, "Folder and tags…")
    expect(tab.dialog("Folder and tags")).to_be_visible()
    tab.press("Escape")
    expect(chat.settings("Prompt").get_by_role("region", name="Presets")).to_contain_text("onerror=__pwned=1")
    file = tmp_path / "<img src=x onerror=__pwned=1>.txt"
    file.write_text(HOSTILE)
    tab.choose(tab.button("Attach pictures, PDF files or text").click, file)
    expect(chat.root.get_by_role("list", name="Attached files")).to_contain_text("onerror=__pwned=1")
    expect(chat.root.locator(".attachment.reading")).to_have_count(0)
    chat.ask(asking_for("sunny"))
    chat.expect_rest()
    chat.questions.last.locator(".file-chip").click()
    expect(tab.page.get_by_role("dialog")).to_contain_text("The end of the hostile text.")
    tab.press("Escape")
    sidebar.act(NAME, "Delete")
    expect(tab.toasts).to_contain_text("onerror")
    for name in server.http.get("/api/puna/presets").json()["presets"]:
        server.http.delete(f"/api/puna/presets/{name}")


def test_imported_hostile_chats_are_harmless(
    server: Server, visit: Callable[..., Visitor], tmp_path: Path
) -> None:
    conversation = {
        "title": NAME,
        "create_time": 1700000000.0,
        "update_time": 1700000000.0,
        "current_node": "b",
        "mapping": {
            "a": {"id": "a", "parent": None, "children": ["b"], "message": {
                "author": {"role": "user"}, "content": {"content_type": "text", "parts": [HOSTILE]}}},
            "b": {"id": "b", "parent": "a", "children": [], "message": {
                "author": {"role": "assistant"}, "content": {"content_type": "text", "parts": [HOSTILE]}}},
        },
    }  # fmt: skip
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps([conversation]))
    visitor = visit(server)
    visitor.forgive(PARSED)
    tab = visitor.tab("#/settings")
    tab.choose(tab.button("Import…").click, file)
    expect(tab.dialog("Import")).to_contain_text("1 chat imported.")
    tab.button("Done").click()
    Sidebar(tab).links.click()
    expect_harmless(Chat(tab).text)


@pytest.mark.thorough
def test_hostile_error_of_the_server_is_harmless(visit: Callable[..., Visitor], server: Server) -> None:
    visitor = visit(server, NAME)
    visitor.forgive("400|404")
    chat = Chat(visitor.tab())
    visitor.context.route("**/api/puna/runs", lambda route: route.fulfill(status=400, json={"error": NAME}))
    chat.ask(asking_for("sunny"))
    expect(chat.root.locator(".notice.error")).to_contain_text(NAME)


def test_document_of_a_model_reaches_neither_the_page_nor_a_network(
    visit: Callable[..., Visitor], server: Server
) -> None:
    visitor = visit(server)
    visitor.forgive(FORBIDDEN_IN_FRAMES)
    chat = Chat(visitor.tab())
    chat.ask(asking_for("hostile artefact"))
    chat.expect_rest()
    chat.tab.button("Show the result").click()
    report = chat.text.frame_locator("iframe").locator("#report")
    expect(report).to_have_text(ANSWERS_TO_ARTEFACTS)
    assert not [url for url in visitor.requested if "evil.example" in url]
    expect(chat.tab.heading).to_be_attached()


def test_handlers_in_the_page_itself_are_noticed(tab: Tab) -> None:
    visitor = tab.visitor
    visitor.forgive("script-src-attr forbids inline")
    # Chromium 150 tells of a handler when it would run, 156 when it is there.
    tab.page.evaluate("document.body.setAttribute('onclick', '0'); document.body.click()")
    visitor.told()
    assert any("script-src-attr forbids inline" in problem for problem in visitor.problems)
