"""Servers with keys: who comes in, what their key covers, and where the key never appears."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from puna.server import keys
from puna.server.http.connections import KeyScope
from tests.e2e.servers import Server, running
from tests.page.sidebar import Sidebar, add_chat
from tests.page.tabs import VIEWS, Tab, Visitor

pytestmark = [pytest.mark.e2e, pytest.mark.page]


@dataclass
class Locked:
    """A server that asks for keys."""

    server: Server
    file: Path

    def key(self, name: str, *scopes: KeyScope) -> str:
        """Make a key."""
        text, key = keys.new_key(name, scopes or keys.SCOPES)
        keys.change_keys(self.file, lambda known: [*known, key])
        return text

    def revoke(self, name: str) -> None:
        keys.change_keys(self.file, lambda known: [key for key in known if key.name != name])


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    folder = tmp_path_factory.mktemp("locked")
    file = folder / "keys.json"
    keys.change_keys(file, lambda _: [keys.new_key("first")[1]])
    with running(folder / "models", PUNA_API_KEYS_FILE=str(file), PUNA_DEBUG="1") as server:
        yield Locked(server, file)


@pytest.fixture
def visitor(visit: Callable[..., Visitor], locked: Locked) -> Visitor:
    visitor = visit(locked.server)
    visitor.forgive("401")
    return visitor


def field(tab: Tab) -> Locator:
    return tab.page.get_by_label("Key", exact=True)


def sign_in(tab: Tab, key: str, *, remember: bool = False) -> None:
    field(tab).fill(key)
    if remember:
        tab.page.get_by_role("switch", name="Remember on this device").check()
    tab.button("Sign in").click()


def test_wrong_key_is_refused_and_a_right_one_opens_the_page(locked: Locked, visitor: Visitor) -> None:
    tab = visitor.tab()
    expect(tab.heading).to_have_text("Sign in to Puna")
    expect(field(tab)).to_be_focused()
    tab.press("Enter")
    expect(tab.page.get_by_role("alert")).to_have_text("Enter a key.")
    sign_in(tab, "puna-wrong")
    expect(tab.page.get_by_role("alert")).to_have_text("The server does not know this key.")
    sign_in(tab, "  " + locked.key("guest") + " ")
    expect(Sidebar(tab).root).to_contain_text("guest")


def test_key_is_in_no_address_and_in_no_log(locked: Locked, visitor: Visitor) -> None:
    key = locked.key("careful")
    tab = visitor.tab()
    sign_in(tab, key)
    expect(Sidebar(tab).root).to_be_visible()
    for place, heading in VIEWS.items():
        tab.show(place, heading)
    assert len([url for url in visitor.requested if "/api/" in url]) > 3
    assert not [url for url in visitor.requested if key in url]
    assert key not in tab.page.url + tab.page.content()
    assert key not in locked.server.log.read_text()
    assert visitor.context.cookies() == []


@pytest.mark.thorough
def test_key_is_forgotten_with_the_tab_unless_it_is_to_be_remembered(
    locked: Locked, visitor: Visitor
) -> None:
    key = locked.key("forgetful")
    tab = visitor.tab()
    sign_in(tab, key)
    expect(Sidebar(tab).root).to_be_visible()
    tab.reload()
    expect(Sidebar(tab).root).to_be_visible()
    other = visitor.tab()
    expect(other.heading).to_have_text("Sign in to Puna")
    sign_in(other, key, remember=True)
    expect(Sidebar(other).root).to_be_visible()
    third = visitor.tab("#/settings")
    expect(Sidebar(third).root).to_be_visible()
    third.button("Sign out").click()
    expect(third.heading).to_have_text("Sign in to Puna")
    fourth = visitor.tab()
    expect(fourth.heading).to_have_text("Sign in to Puna")
    assert key not in (third.page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])"))


def test_keys_see_their_own_chats_only(locked: Locked, visitor: Visitor) -> None:
    one, two = locked.key("one"), locked.key("two")
    id = add_chat(locked.server, "A secret", title="Mine", headers={"Authorization": f"Bearer {one}"})
    tab = visitor.tab()
    sign_in(tab, one)
    Sidebar(tab).expect_chats(["Mine"])
    tab.go(f"#/chat/{id}")
    expect(tab.page.get_by_text("A secret")).to_be_visible()
    tab.go("#/settings")
    tab.button("Sign out").click()
    sign_in(tab, two)
    Sidebar(tab).expect_chats([])
    visitor.forgive("404")
    tab.go(f"#/chat/{id}")
    expect(tab.page.get_by_text("It was deleted, or belongs to another key.")).to_be_visible()
    assert "A secret" not in tab.page.content()


@pytest.mark.thorough
def test_revoked_key_is_asked_for_again_and_nothing_that_was_typed_is_lost(
    locked: Locked, visitor: Visitor
) -> None:
    tab = visitor.tab("#/settings")
    sign_in(tab, locked.key("former"))
    Sidebar(tab).search.fill("half")
    locked.revoke("former")
    Sidebar(tab).search.fill("half a word")
    again = tab.dialog("Your key is no longer accepted")
    expect(again).to_be_visible()
    again.get_by_label("Key", exact=True).fill(locked.key("former"))
    tab.button("Sign in", within=again).click()
    expect(again).to_be_hidden()
    expect(Sidebar(tab).search).to_have_value("half a word")


@pytest.mark.parametrize(
    ("scope", "open_places", "closed_places"),
    [
        ("generate", ["#/chat"], ["#/engine", "#/models"]),
        ("read", ["#/engine", "#/models"], ["#/chat"]),
        ("manage", ["#/settings"], ["#/chat", "#/engine"]),
    ],
)
@pytest.mark.thorough
def test_views_that_a_key_does_not_cover_say_so(
    scope: KeyScope, open_places: list[str], closed_places: list[str], locked: Locked, visitor: Visitor
) -> None:
    visitor.forgive("403")
    tab = visitor.tab()
    sign_in(tab, locked.key(f"only-{scope}", scope))
    expect(Sidebar(tab).root).to_be_visible()
    refusal = tab.page.get_by_text("Your key does not cover this")
    for place in closed_places:
        tab.go(place)
        expect(refusal).to_be_visible()
    for place in open_places:
        tab.go(place)
        expect(refusal).to_have_count(0)
        expect(tab.heading).to_be_attached()
