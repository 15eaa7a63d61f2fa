"""Answers that go on while pages and servers come and go, and chats of unusual size."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.e2e.servers import Server, add_model, running
from tests.page.chat import Chat, suspended
from tests.page.proxy import proxied
from tests.page.scripts import LONG, SUNNY, asking_for
from tests.page.sidebar import Sidebar, add_chat
from tests.page.tabs import GREEDY, Visitor
from tests.ports import free_port
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.page]

SUN = asking_for("sunny", "How is the weather?")
PARTLY = re.compile("Paragraph 3 ")
LAST = "Paragraph 200 of the long answer."


def paragraphs(chat: Chat) -> str:
    """The text of the last answer."""
    return "\n\n".join(chat.text.locator("p").all_text_contents())


def test_answer_goes_on_while_the_page_is_reloaded(visit: Callable[..., Visitor], server: Server) -> None:
    settings = {"options": GREEDY["options"] | {"num_ctx": 4096}}
    chat = Chat(visit(server, "endless:latest", {"puna.defaults": settings}).tab())
    chat.ask("Go on.")
    expect(chat.text).to_have_text(re.compile(r".{20}", re.DOTALL))
    with suspended(server):
        length = len(chat.text.inner_text())
        chat.tab.reload()
        expect(chat.answer).to_have_attribute("aria-busy", "true")
        expect(chat.text).to_have_text(re.compile(rf".{{{length}}}", re.DOTALL))
        length = len(chat.text.inner_text())
    expect(chat.text).to_have_text(re.compile(rf".{{{length + 50}}}", re.DOTALL))
    chat.tab.button("Stop the answer").click()
    chat.expect_answer("Stopped.")
    shown = chat.text.inner_text()
    chat.tab.reload()
    chat.expect_answer("Stopped.")
    assert chat.text.inner_text() == shown


@pytest.mark.thorough
def test_answer_goes_on_without_a_page_and_is_found_again(
    visit: Callable[..., Visitor], server: Server
) -> None:
    visitor = visit(server)
    tab = visitor.tab()
    chat = Chat(tab)
    chat.ask(asking_for("long"))
    expect(chat.text).to_contain_text(PARTLY)
    place = "#" + tab.page.url.partition("#")[2]
    tab.page.close()
    chat = Chat(visitor.tab(place))
    chat.expect_answer(LAST)
    assert paragraphs(chat) == LONG


def test_answer_is_whole_after_its_connection_broke(
    visit: Callable[..., Visitor], server: Server, outlasting: ExitStack
) -> None:
    proxy = outlasting.enter_context(proxied(server.url))
    visitor = visit(proxy.url)
    visitor.forgive("net::ERR_")
    proxy.cut_events(3000, 9000, 20000)
    chat = Chat(visitor.tab())
    chat.ask(asking_for("long"))
    chat.expect_answer(LAST)
    assert paragraphs(chat) == LONG
    resumed = [path for path in proxy.requests if re.fullmatch(r"/api/puna/runs/\w+/events(\?.*)?", path)]
    assert len(resumed) == 4


@pytest.mark.thorough
def test_two_tabs_see_the_same_answer_grow(visit: Callable[..., Visitor], server: Server) -> None:
    visitor = visit(server)
    one = Chat(visitor.tab())
    one.ask(asking_for("long"))
    expect(one.text).to_contain_text(PARTLY)
    with suspended(server):
        other = Chat(visitor.tab("#" + one.tab.page.url.partition("#")[2]))
        expect(other.text).to_contain_text(PARTLY)
        wait_until(lambda: paragraphs(other) == paragraphs(one), "both tabs to show the same")
    for chat in (one, other):
        chat.expect_answer(LAST)
        assert paragraphs(chat) == LONG


@pytest.mark.thorough
def test_two_tabs_write_in_one_chat(visit: Callable[..., Visitor], server: Server) -> None:
    visitor = visit(server)
    one = Chat(visitor.tab())
    one.ask(SUN)
    one.expect_answer(SUNNY)
    other = Chat(visitor.tab("#" + one.tab.page.url.partition("#")[2]))
    other.expect_answer(SUNNY)
    other.ask(asking_for("thought"))
    other.expect_rest()
    expect(one.questions).to_have_count(2)
    one.expect_answer("four")


def test_answer_of_a_killed_server_is_kept_as_it_was(
    visit: Callable[..., Visitor], tmp_path: Path, model_files: dict[str, Path]
) -> None:
    host = f"127.0.0.1:{free_port()}"
    with running(tmp_path, PUNA_HOST=host) as server:
        add_model(server, "endless", model_files["endless"])
        settings = {"options": GREEDY["options"] | {"num_ctx": 4096}}
        visitor = visit(server, "endless:latest", {"puna.defaults": settings})
        visitor.forgive("net::ERR_|404")
        chat = Chat(visitor.tab())
        chat.ask("Go on.")
        id = chat.tab.page.url.rpartition("/")[2]

        def kept() -> str:
            found: str = server.http.get(f"/api/puna/chats/{id}").json()["messages"][1]["content"]
            return found

        wait_until(lambda: bool(kept()), "a part of the answer to be kept")
        server.process.kill()
        server.process.wait()
        gone = chat.tab.page.get_by_text("The server cannot be reached")
        expect(gone).to_be_visible()
    with running(tmp_path, PUNA_HOST=host):
        expect(gone).to_be_hidden()
        chat.expect_rest()
        expect(chat.answer).to_contain_text("the server was stopped")
        chat.tab.reload()
        expect(chat.answer).to_contain_text("the server was stopped")
        expect(chat.text).not_to_be_empty()


@pytest.mark.thorough
def test_question_that_was_not_sent_stays_in_its_place(visit: Callable[..., Visitor], server: Server) -> None:
    visitor = visit(server)
    visitor.forgive("net::ERR_")
    chat = Chat(visitor.tab())
    chat.composer.fill(SUN)
    visitor.context.set_offline(True)
    chat.tab.press("Enter")
    expect(chat.root).to_contain_text("Not sent: Cannot reach the server.")
    expect(chat.composer).to_have_value(SUN)
    visitor.context.set_offline(False)
    chat.tab.press("Enter")
    chat.expect_answer(SUNNY)
    expect(chat.questions).to_have_count(1)


@pytest.mark.thorough
def test_chat_deleted_in_another_tab_says_so(visit: Callable[..., Visitor], server: Server) -> None:
    id = add_chat(server, "A question", "An answer", title="Shared")
    visitor = visit(server)
    visitor.forgive("404")
    one = visitor.tab(f"#/chat/{id}")
    expect(one.page.get_by_text("An answer")).to_be_visible()
    other = Sidebar(visitor.tab("#/settings"))
    other.act("Shared", "Delete")
    expect(one.page.get_by_text("This chat is not there")).to_be_visible()
    other.tab.button("Undo").click()
    Sidebar(one).expect_chats(["Shared"])


def import_long_chat(server: Server, length: int) -> str:
    """Keep a chat of that many messages, in one request; returns its id."""
    example = add_chat(server, "Message 1", title="Long")
    with server.http as http:
        exported = http.get(f"/api/puna/chats/{example}/export", params={"format": "json"}).json()
        [chat] = exported["chats"]
        [first] = chat["messages"]
        chat["messages"] = [
            {
                **first,
                "id": f"{number:016x}",
                "parent": f"{number - 1:016x}" if number > 1 else None,
                "role": ("assistant", "user")[number % 2],
                "content": f"Message {number}",
            }
            for number in range(1, length + 1)
        ]
        chat["leaf"] = f"{length:016x}"
        http.delete(f"/api/puna/chats/{example}")
        report = http.post("/api/puna/import", content=json.dumps(exported)).raise_for_status().json()
        assert (report["imported"], report["skipped"]) == (1, [])
        found: str = http.get("/api/puna/chats").json()["chats"][0]["id"]
    return found


@pytest.mark.thorough
def test_chat_of_10000_messages_draws_what_is_near(visit: Callable[..., Visitor], server: Server) -> None:
    id = import_long_chat(server, 10_000)
    chat = Chat(visit(server).tab(f"#/chat/{id}"))
    expect(chat.messages.last).to_contain_text("Message 10000")
    assert chat.messages.count() < 200
    scroll = chat.root.get_by_role("region", name="Conversation")
    scroll.evaluate("element => { element.scrollTop = 0 }")
    expect(chat.messages.first).to_contain_text("Message 1")
    assert chat.messages.count() < 200
    chat.ask(SUN)
    chat.expect_answer(SUNNY)
