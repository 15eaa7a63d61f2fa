"""The frame around all views: the list of views, keys, and what is shown when something fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from puna.server.settings import BUILT_PAGE
from tests.e2e.servers import Server, running
from tests.page.sidebar import Sidebar, add_chat
from tests.page.tabs import VIEWS, Tab, Visitor
from tests.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.page]


def test_browsers_get_the_page_and_programs_the_line_they_expect(server: Server, tab: Tab) -> None:
    expect(tab.page).to_have_title("New chat – Puna")
    assert server.http.get("/").text == "Ollama is running"
    assert server.http.get("/", headers={"Accept": "application/json"}).text == "Ollama is running"


def test_first_load_is_small_and_packed(visit: Callable[..., Visitor], server: Server) -> None:
    visitor = visit(server)
    visitor.tab()
    loaded = [url for url in visitor.requested if "/assets/" in url or url == visitor.address]
    sizes = {}
    for url in loaded:
        with server.http.stream(
            "GET", url, headers={"Accept": "text/html", "Accept-Encoding": "gzip"}
        ) as reply:
            sizes[url] = len(b"".join(reply.iter_raw()))
            if url.endswith((".js", ".css")):
                assert "immutable" in reply.headers["cache-control"]
                assert sizes[url] < 1024 or reply.headers["content-encoding"] == "gzip"
    assert sum(sizes.values()) < 300_000, sizes
    assert len(list(BUILT_PAGE.glob("assets/*.js"))) > len([url for url in loaded if url.endswith(".js")])


def test_views_are_reached_by_links_addresses_and_the_browsers_buttons(tab: Tab) -> None:
    sidebar = Sidebar(tab)
    for place, title in VIEWS.items():
        sidebar.root.get_by_role("link", name=title).click()
        expect(tab.heading).to_have_text(title)
        expect(tab.page).to_have_title(f"{title} – Puna")
        assert tab.page.url.endswith(place)
        expect(sidebar.root.get_by_role("link", name=title)).to_have_attribute("aria-current", "page")
    tab.page.go_back()
    expect(tab.heading).to_have_text("Engine")
    tab.page.go_forward()
    expect(tab.heading).to_have_text("Settings")
    tab.go("#/nonsense/..%2f<b>")
    expect(tab.page).to_have_title("New chat – Puna")


def test_keys_do_what_their_list_says(server: Server, visit: Callable[..., Visitor]) -> None:
    add_chat(server, "A question", title="A chat")
    tab = visit(server).tab("#/settings")
    sidebar = Sidebar(tab)
    sidebar.expect_chats(["A chat"])
    tab.heading.click()
    tab.press("?")
    keys = tab.dialog("Keyboard shortcuts")
    expect(keys).to_contain_text("Search chats")
    expect(keys).to_contain_text("Show or hide the sidebar")
    tab.press("Escape")
    expect(keys).to_be_hidden()
    tab.press("Control+b")
    expect(sidebar.root).to_be_hidden()
    tab.press("Control+k")
    expect(sidebar.search).to_be_focused()
    tab.press("ArrowDown")
    expect(sidebar.chat("A chat")).to_be_focused()
    tab.press("Control+Shift+O")
    expect(tab.page).to_have_title("New chat – Puna")


@pytest.mark.thorough
def test_question_mark_can_be_typed(tab: Tab) -> None:
    sidebar = Sidebar(tab)
    sidebar.search.click()
    tab.page.keyboard.type("why?")
    expect(sidebar.search).to_have_value("why?")
    expect(tab.dialog("Keyboard shortcuts")).to_have_count(0)


@pytest.mark.thorough
def test_keyboard_reaches_the_content_past_the_sidebar(tab: Tab) -> None:
    tab.go("#/settings")
    expect(tab.heading).to_have_text("Settings")
    tab.page.evaluate("document.activeElement.blur()")
    tab.page.reload()
    expect(tab.heading).to_have_text("Settings")
    tab.press("Tab")
    expect(tab.focused).to_have_text("Skip to the content")
    tab.press("Enter")
    expect(tab.page.get_by_role("region", name="Content")).to_be_focused()


@pytest.mark.thorough
def test_focus_follows_the_toggle_of_the_sidebar(tab: Tab) -> None:
    tab.button("Hide the sidebar").click()
    expect(tab.button("Show the sidebar")).to_be_focused()
    tab.press("Enter")
    expect(tab.button("Hide the sidebar")).to_be_focused()


@pytest.mark.thorough
def test_sidebar_stays_hidden_on_the_next_visit(tab: Tab) -> None:
    tab.button("Hide the sidebar").click()
    tab.reload()
    expect(Sidebar(tab).root).to_be_hidden()
    expect(tab.button("Show the sidebar")).to_be_visible()


@pytest.mark.thorough
def test_narrow_window_has_the_sidebar_over_the_view(server: Server, visit: Callable[..., Visitor]) -> None:
    add_chat(server, "A question", title="A chat")
    tab = visit(server, viewport={"width": 360, "height": 740}).tab()
    sidebar = Sidebar(tab)
    expect(sidebar.root).to_be_hidden()
    tab.button("Show the sidebar").click()
    expect(sidebar.root).to_be_visible()
    tab.press("Escape")
    expect(sidebar.root).to_be_hidden()
    tab.button("Show the sidebar").click()
    sidebar.chat("A chat").click()
    expect(sidebar.root).to_be_hidden()
    expect(tab.page).to_have_title("A chat – Puna")


@pytest.mark.parametrize("width", [360, 1280, 3840])
@pytest.mark.thorough
def test_no_view_is_wider_than_the_window(width: int, server: Server, visit: Callable[..., Visitor]) -> None:
    add_chat(server, "A question", title="A title " * 20)
    tab = visit(server, viewport={"width": width, "height": 740}).tab()
    for place, heading in ({"#/chat": "New chat"} | VIEWS).items():
        tab.show(place, heading)
        assert tab.page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.thorough
def test_view_that_cannot_be_fetched_says_so(visit: Callable[..., Visitor], server: Server) -> None:
    visitor = visit(server)
    visitor.forgive("net::ERR_FAILED")
    tab = visitor.tab()
    visitor.context.route("**/assets/**", lambda route: route.abort())
    Sidebar(tab).root.get_by_role("link", name="Settings").click()
    expect(tab.page.get_by_text("This view could not be loaded")).to_be_visible()
    visitor.context.unroute_all()
    tab.button("Reload the page").click()
    expect(tab.heading).to_have_text("Settings")


def test_page_says_that_the_server_is_gone_and_goes_on_when_it_is_back(
    tmp_path: Path, visit: Callable[..., Visitor]
) -> None:
    host = f"127.0.0.1:{free_port()}"
    with running(tmp_path, PUNA_HOST=host) as server:
        add_chat(server, "A question", title="Kept")
        visitor = visit(server)
        visitor.forgive(
            "ERR_CONNECTION_REFUSED|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE|ERR_INCOMPLETE_CHUNKED"
            "|ERR_CONTENT_LENGTH_MISMATCH|status of 503"
        )
        tab = visitor.tab("#/settings")
        sidebar = Sidebar(tab)
        sidebar.expect_chats(["Kept"])
        server.process.kill()
        server.process.wait()
    sidebar.search.fill("kept")
    gone = tab.page.get_by_text("The server cannot be reached")
    expect(gone).to_be_visible()
    with running(tmp_path, PUNA_HOST=host):
        expect(gone).to_be_hidden()
        sidebar.expect_chats(["Kept"])


@pytest.mark.thorough
def test_page_that_cannot_start_starts_once_the_server_is_back(
    tmp_path: Path, visit: Callable[..., Visitor]
) -> None:
    host = f"127.0.0.1:{free_port()}"
    with running(tmp_path, PUNA_HOST=host) as server:
        visitor = visit(server)
        visitor.forgive("net::ERR_")
        visitor.context.route("**/api/**", lambda route: route.abort())
        tab = visitor.tab()
        expect(tab.page.get_by_text("Puna does not answer")).to_be_visible()
        visitor.context.unroute_all()
        expect(Sidebar(tab).root).to_be_visible()


@pytest.mark.thorough
def test_preferences_that_make_no_sense_are_ignored(visit: Callable[..., Visitor], server: Server) -> None:
    stored = {"puna.theme": "pink", "puna.sidebar": {}, "puna.defaults": [1], "puna.text-size": None}
    visitor = visit(server, stored=stored)
    visitor.store({"puna.model": "{not JSON"})
    tab = visitor.tab("#/settings")
    expect(tab.page.get_by_role("radio", name="System")).to_be_checked()
    expect(Sidebar(tab).root).to_be_visible()
    assert json.loads(tab.page.evaluate("localStorage.getItem('puna.theme')")) == "pink"
