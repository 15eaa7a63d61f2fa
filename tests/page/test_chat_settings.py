"""Settings of a chat: what they ask of the model, how they are checked, and presets."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.e2e.servers import Server, environment
from tests.page.chat import Chat
from tests.page.scripts import SUNNY, asking_for
from tests.page.tabs import GREEDY, Tab, Visitor
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.e2e, pytest.mark.page]

SUN = asking_for("sunny", "How is the weather?")


@pytest.fixture
def chat(tab: Tab) -> Chat:
    return Chat(tab)


@pytest.fixture
def demo(visit: Callable[..., Visitor], server: Server) -> Chat:
    """A new chat with the bundled model."""
    settings = {"options": GREEDY["options"] | {"num_predict": 60}}
    return Chat(visit(server, "demo:latest", {"puna.defaults": settings}).tab())


def test_system_prompt_comes_first_and_stays_with_the_chat(chat: Chat) -> None:
    chat.settings("Prompt").get_by_label("System prompt").fill("Be brief.")
    request = chat.asked(lambda: chat.ask(SUN))
    assert request["messages"][0] == {"role": "system", "content": "Be brief."}
    chat.expect_answer(SUNNY)
    chat.tab.reload()
    expect(chat.settings("Prompt").get_by_label("System prompt")).to_have_value("Be brief.")


@pytest.mark.thorough
def test_defaults_of_new_chats_are_those_of_the_settings(chat: Chat) -> None:
    tab = chat.tab
    tab.go("#/settings")
    defaults = tab.page.get_by_role("region", name="Defaults of new chats")
    defaults.get_by_label("System prompt").fill("Be kind.")
    defaults.get_by_label("Context length").fill("777")
    tab.press("Control+Shift+O")
    tab.reload()
    request = chat.asked(lambda: chat.ask(SUN))
    assert request["messages"][0]["content"] == "Be kind."
    assert request["options"] == {"temperature": 0, "seed": 1, "num_ctx": 777}
    chat.expect_answer(SUNNY)


@pytest.mark.thorough
def test_options_have_meanings_and_defaults_and_are_checked(chat: Chat) -> None:
    panel = chat.settings("Options")
    chat.tab.button("Show all 51 options").or_(
        panel.get_by_role("button", name=re.compile(r"^Show all \d+ options$"))
    ).click()
    rows = panel.locator(".option")
    expect(rows.nth(40)).to_be_attached()
    for row in rows.all():
        assert len(row.locator(".field-hint").inner_text()) > 10
    chat.set_option("top_k", "many")
    row = panel.locator(".option").first
    expect(row.get_by_role("alert")).to_be_visible()
    chat.set_option("top_k", "7")
    chat.set_option("stop", "never")
    request = chat.asked(lambda: chat.ask(SUN))
    assert request["options"]["top_k"] == 7
    assert request["options"]["stop"] == ["never"]
    chat.expect_answer(SUNNY)
    chat.settings("Options").get_by_role("searchbox").fill("top_k")
    chat.tab.button("Back to 40").click()
    request = chat.asked(lambda: chat.ask("Again."))
    assert "top_k" not in request["options"]
    chat.expect_rest()


def test_answer_has_the_form_of_a_schema(demo: Chat) -> None:
    panel = demo.settings("Format")
    panel.get_by_label("An answer is").select_option(label="JSON of a schema")
    field = panel.get_by_role("textbox")
    field.fill('{"type": "objekt"}')
    expect(panel.get_by_role("alert")).to_be_visible()
    field.fill('{"type": ')
    expect(panel.get_by_role("alert")).to_be_visible()
    expect(demo.tab.button("Tidy up")).to_be_disabled()
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"],
              "additionalProperties": False}  # fmt: skip
    field.fill(json.dumps(schema))
    expect(panel).to_contain_text("Valid")
    assert demo.asked(lambda: demo.ask("Give me a number."))["format"] == schema
    demo.expect_rest()
    answer = json.loads(demo.text.inner_text())
    assert list(answer) == ["n"]
    assert isinstance(answer["n"], int)


@pytest.mark.thorough
def test_answer_is_one_of_the_choices(demo: Chat) -> None:
    panel = demo.settings("Format")
    panel.get_by_label("An answer is").select_option(label="One of several choices")
    panel.get_by_role("textbox").fill("a fox\na bear")
    expect(panel).to_contain_text("2 choices")
    demo.ask("Who comes?")
    demo.expect_rest()
    assert demo.text.inner_text() in ("a fox", "a bear")


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [("Text of a grammar", "root ::= ("), ("Text of a regular expression", "(a")],
)
@pytest.mark.thorough
def test_grammars_and_expressions_are_checked_where_they_are_typed(kind: str, wrong: str, chat: Chat) -> None:
    panel = chat.settings("Format")
    panel.get_by_label("An answer is").select_option(label=kind)
    chat.tab.button("Begin with an example").click()
    expect(panel).to_contain_text("Valid")
    panel.get_by_role("textbox").fill(wrong)
    expect(panel.get_by_role("alert")).to_be_visible()


@pytest.mark.thorough
def test_tools_are_checked_where_they_are_typed(chat: Chat) -> None:
    panel = chat.settings("Tools")
    chat.tab.button("Begin with an example").click()
    expect(panel.locator(".badge")).to_have_text("get_weather")
    field = panel.get_by_label("Tools", exact=True)
    field.fill('[{"type": "function"}]')
    expect(panel.get_by_role("alert")).to_be_visible()


def test_settings_are_saved_under_a_name_and_used_in_other_chats(server: Server, chat: Chat) -> None:
    tab = chat.tab
    chat.settings("Prompt").get_by_label("System prompt").fill("Be a pirate.")
    chat.set_option("top_k", "5")
    chat.settings("Prompt")
    tab.button("Save these settings…").click()
    name = tab.dialog("Save as a preset")
    name.get_by_label("Name").fill("<b>Pirate</b>")
    tab.press("Enter")
    expect(tab.toasts).to_contain_text("Saved “<b>Pirate</b>”")
    tab.page.evaluate("localStorage.removeItem('puna.defaults')")
    tab.press("Control+Shift+O")
    expect(chat.settings("Prompt").get_by_label("System prompt")).to_have_value("")
    tab.button("<b>Pirate</b>").click()
    request = chat.asked(lambda: chat.ask(SUN))
    assert request["messages"][0]["content"] == "Be a pirate."
    assert request["options"]["top_k"] == 5
    chat.expect_answer(SUNNY)
    tab.button("Delete the preset <b>Pirate</b>").click()
    expect(tab.button("<b>Pirate</b>")).to_have_count(0)
    assert server.http.get("/api/puna/presets").json()["presets"] == {}


@pytest.mark.thorough
def test_settings_are_cleared_only_when_pressed_twice(chat: Chat) -> None:
    prompt = chat.settings("Prompt").get_by_label("System prompt")
    prompt.fill("Be brief.")
    chat.tab.button("Clear all settings").click()
    expect(prompt).to_have_value("Be brief.")
    chat.tab.button("Press again to clear all settings").click()
    expect(prompt).to_have_value("")


CODES = ["curl", "ollama", "openai", "anthropic", "puna"]


def test_chat_is_shown_as_code_of_every_package(chat: Chat) -> None:
    chat.ask(SUN)
    chat.expect_answer(SUNNY)
    chat.tab.button("This chat as code").click()
    code = chat.tab.dialog("This chat as code")
    for name in CODES:
        code.get_by_role("tab", name=name, exact=True).click()
        expect(code.locator("pre")).to_contain_text("How is the weather?")
        expect(code.locator("pre")).to_contain_text("scripted")


@pytest.mark.parametrize("name", CODES)
@pytest.mark.thorough
def test_code_of_a_chat_prints_its_answer(name: str, chat: Chat, server: Server, tmp_path: Path) -> None:
    chat.settings("Prompt").get_by_label("System prompt").fill('It\'s "brief" – and\nkind.')
    chat.ask(SUN)
    chat.expect_answer(SUNNY)
    chat.tab.button("This chat as code").click()
    code = chat.tab.dialog("This chat as code")
    code.get_by_role("tab", name=name, exact=True).click()
    shown = code.get_by_role("tabpanel", name=name, exact=True).locator("pre")
    expect(shown).to_contain_text("How is the weather?")
    run = ["bash", "-c"] if name == "curl" else [sys.executable, "-c"]
    done = subprocess.run(
        [*run, shown.inner_text()],
        env=environment(server.models),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert SUNNY in done.stdout
