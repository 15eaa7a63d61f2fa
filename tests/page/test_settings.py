"""Preferences: what they change, and that they last."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, expect

from tests.e2e.servers import Server
from tests.page.sidebar import add_chat
from tests.page.tabs import Tab, Visitor
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.page]


@pytest.fixture
def settings(visit: Callable[..., Visitor], server: Server) -> Tab:
    return visit(server).tab("#/settings")


def choice(tab: Tab, group: str, name: str) -> Locator:
    return tab.page.get_by_role("radiogroup", name=group).get_by_role("radio", name=name)


def theme(tab: Tab) -> Locator:
    """The document, whose attributes and colours follow the theme."""
    return tab.page.locator("html")


def background(tab: Tab) -> str:
    found: str = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    return found


def test_theme_is_chosen_kept_and_followed_by_other_tabs(settings: Tab) -> None:
    other = settings.visitor.tab("#/engine")
    expect(theme(settings)).to_have_attribute("data-theme", "light")
    light = background(settings)
    choice(settings, "Theme", "Dark").click()
    expect(theme(settings)).to_have_attribute("data-theme", "dark")
    expect(theme(other)).to_have_attribute("data-theme", "dark")
    wait_until(lambda: background(settings) != light, "the colours of the dark theme")
    settings.reload()
    expect(choice(settings, "Theme", "Dark")).to_be_checked()
    expect(theme(settings)).to_have_attribute("data-theme", "dark")


@pytest.mark.thorough
def test_theme_of_the_system_is_followed(settings: Tab) -> None:
    settings.page.emulate_media(color_scheme="dark")
    expect(theme(settings)).to_have_attribute("data-theme", "dark")
    settings.page.emulate_media(color_scheme="light")
    expect(theme(settings)).to_have_attribute("data-theme", "light")


@pytest.mark.thorough
def test_choices_move_with_arrow_keys(settings: Tab) -> None:
    choice(settings, "Theme", "System").focus()
    settings.press("ArrowRight", "ArrowRight")
    expect(choice(settings, "Theme", "Dark")).to_be_checked()
    expect(choice(settings, "Theme", "Dark")).to_be_focused()
    settings.press("ArrowRight")
    expect(choice(settings, "Theme", "System")).to_be_checked()


@pytest.mark.thorough
def test_text_of_chats_grows_with_its_size(settings: Tab, server: Server) -> None:
    id = add_chat(server, "A question", "An answer")
    sizes = []
    for size in ("Small", "Medium", "Large"):
        settings.go("#/settings")
        choice(settings, "Text size", size).click()
        expect(choice(settings, "Text size", size)).to_be_checked()
        settings.go(f"#/chat/{id}")
        text = settings.page.get_by_text("An answer")
        expect(text).to_be_visible()
        sizes.append(text.evaluate("element => parseFloat(getComputedStyle(element).fontSize)"))
    assert sizes[0] < sizes[1] < sizes[2]


@pytest.mark.thorough
def test_model_of_new_chats_is_one_of_the_servers(settings: Tab) -> None:
    models = settings.page.get_by_label("Model of new chats")
    expect(models.locator("option", has_text="demo-vision")).to_have_count(1)
    models.select_option(label="demo:latest")
    settings.reload()
    expect(models).to_have_value("demo:latest")


def test_numbers_out_of_range_are_refused_where_they_are_typed(settings: Tab) -> None:
    field = settings.page.get_by_label("Temperature")
    field.fill("-1")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(settings.page.get_by_text("Use a number from 0 to 10.")).to_be_visible()
    field.fill("0.5")
    expect(settings.page.get_by_text("Use a number from 0 to 10.")).to_be_hidden()
    settings.reload()
    expect(field).to_have_value("0.5")


@pytest.mark.thorough
def test_section_of_the_address_is_scrolled_to(visit: Callable[..., Visitor], server: Server) -> None:
    tab = visit(server, viewport={"width": 800, "height": 300}).tab("#/settings/about")
    expect(tab.page.get_by_role("region", name="About")).to_be_in_viewport()
    tab.go("#/settings/appearance")
    expect(tab.page.get_by_role("region", name="Appearance")).to_be_in_viewport()


@pytest.mark.thorough
def test_licences_of_the_packages_are_at_hand(settings: Tab) -> None:
    settings.visitor.forgive("favicon")  # which browsers want for a file of text, too
    link = settings.page.get_by_role("link", name="Licences of the packages in it")
    with settings.visitor.context.expect_page() as opened:
        link.click()
    expect(opened.value.locator("body")).to_contain_text("preact")
    expect(link).to_have_attribute("rel", "noopener noreferrer")
