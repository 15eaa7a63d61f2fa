"""The page behind proxies, with TLS, without history, and without any network but its server."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import trustme
from playwright.sync_api import expect

from tests.e2e.servers import Server, running
from tests.page.chat import Chat
from tests.page.proxy import proxied
from tests.page.scripts import SUNNY, asking_for
from tests.page.sidebar import Sidebar
from tests.page.tabs import Visitor

pytestmark = [pytest.mark.e2e, pytest.mark.page]

SUN = asking_for("sunny", "How is the weather?")


@pytest.mark.parametrize(
    "strips", [True, pytest.param(False, marks=pytest.mark.thorough)], ids=["path removed", "path kept"]
)
def test_page_works_below_a_path_of_a_proxy(
    strips: bool, servers: Callable[..., Server], visit: Callable[..., Visitor], outlasting: ExitStack
) -> None:
    server = servers() if strips else servers(PUNA_ROOT_PATH="/deep/puna")
    proxy = outlasting.enter_context(proxied(server.url, "/deep/puna", strips=strips))
    chat = Chat(visit(proxy.url).tab())
    chat.ask(SUN)
    chat.expect_answer(SUNNY)
    for place, title in (("#/models", "Models"), ("#/engine", "Engine"), ("#/settings", "Settings")):
        chat.tab.go(place)
        expect(chat.tab.heading).to_have_text(title)
    chat.tab.go("#/chat")
    chat.ask(asking_for("artefact"))
    chat.expect_rest()
    chat.tab.button("Show the result").click()
    frame = chat.text.frame_locator("iframe")
    expect(frame.get_by_role("button", name="press me")).to_be_visible()
    assert all(path.startswith("/deep/puna/") for path in proxy.requests)
    assert len(proxy.requests) > 10


@pytest.mark.thorough
def test_page_works_with_tls(tmp_path: Path, visit: Callable[..., Visitor], outlasting: ExitStack) -> None:
    issued = trustme.CA().issue_cert("localhost", "127.0.0.1")
    key, chain = tmp_path / "key.pem", tmp_path / "chain.pem"
    issued.private_key_pem.write_to_path(key)
    for blob in issued.cert_chain_pems:
        blob.write_to_path(chain, append=True)
    server = outlasting.enter_context(
        running(tmp_path / "models", PUNA_TLS_CERT=str(chain), PUNA_TLS_KEY=str(key))
    )
    url = server.url.replace("http:", "https:")
    chat = Chat(visit(url, "demo:latest", ignore_https_errors=True).tab())
    chat.set_option("num_predict", "8")
    chat.ask("Tell me a story about a fox.")
    chat.expect_rest()
    expect(chat.text).not_to_be_empty()
    Sidebar(chat.tab).expect_chats(["Tell me a story about a fox."])


def test_without_history_chats_live_in_the_tab(
    servers: Callable[..., Server], visit: Callable[..., Visitor], tmp_path: Path
) -> None:
    server = servers(PUNA_HISTORY="off")
    visitor = visit(server)
    tab = visitor.tab()
    chat, sidebar = Chat(tab), Sidebar(tab)
    expect(sidebar.root).to_contain_text("This server keeps no history")
    chat.ask(SUN)
    chat.expect_answer(SUNNY)
    sidebar.expect_chats([SUN])
    tab.press("Control+Shift+O")
    file = tmp_path / "notes.txt"
    file.write_text("words of a file")
    tab.choose(tab.button("Attach pictures, PDF files or text").click, file)
    expect(chat.root.locator(".attachment.ready")).to_be_visible()
    request = chat.asked(lambda: chat.ask(asking_for("long")))
    assert "words of a file" in request["messages"][0]["content"]
    chat.expect_answer("Paragraph 200 ")
    sidebar.search.fill("weather")
    sidebar.expect_chats([SUN])
    sidebar.links.click()
    chat.expect_answer(SUNNY)
    sidebar.act(SUN, "Rename")
    sidebar.title_field.fill("Weather")
    tab.press("Enter")
    sidebar.expect_chats(["Weather"])
    name, text = tab.download(lambda: sidebar.act("Weather", "Export as JSON"))
    assert [one["content"] for one in json.loads(text)["chats"][0]["messages"]] == [SUN, SUNNY]
    sidebar.act("Weather", "Delete")
    tab.button("Undo").click()
    sidebar.expect_chats(["Weather"])
    other = visitor.tab()
    Sidebar(other).expect_chats([])
    tab.reload()
    assert visitor.dialogs == ["beforeunload"]
    sidebar.expect_chats([])
    saved = tmp_path / name
    saved.write_text(text)
    tab.go("#/settings")
    tab.choose(tab.button("Import…").click, saved)
    expect(tab.dialog("Import")).to_contain_text("1 chat imported.")
    tab.button("Done").click()
    sidebar.expect_chats(["Weather"])


def test_page_asks_nothing_of_other_servers(visit: Callable[..., Visitor], server: Server) -> None:
    """Fonts, styles and scripts, also those that are loaded later, come from the server."""
    visitor = visit(server)
    chat = Chat(visitor.tab())
    chat.ask(asking_for("markdown"))
    chat.expect_rest()
    chat.tab.wait_for_font("KaTeX")
    for place in ("#/models", "#/engine", "#/settings"):
        chat.tab.go(place)
        expect(chat.tab.heading).to_be_attached()
        expect(chat.tab.page.locator("[aria-busy=true]")).to_have_count(0)
    assert any(".woff2" in url for url in visitor.requested)
    assert {url.partition("/assets/")[0] for url in visitor.requested if "/assets/" in url} == {server.url}
    assert all(url.startswith((server.url, "data:", "blob:")) for url in visitor.requested)
