"""Tools of MCP servers on the page: off by default, each call shown and confirmed, and real ones called."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, expect

from tests.e2e.servers import Server, add_model, running
from tests.e2e.tools.calling import call
from tests.mcp.servers import command
from tests.page.chat import Chat
from tests.page.scripts import TEMPLATE
from tests.page.tabs import Visitor
from tests.scripted import randomly_cut, trigger, write_scripted

pytestmark = [pytest.mark.e2e, pytest.mark.page]

ANIMAL = "A fox is an animal."
#: What the model says, by the trigger in the last message: a result of `look_up` has the second one.
SAYS = ["So be it.", ANIMAL, f"I look.\n{call({'word': 'fox'}, 'look_up')}"]
ASKS = f"{trigger(2)} Look the fox up."


@pytest.fixture(scope="module")
def looker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose model calls a tool of an MCP server, and answers with what the tool says."""
    folder = tmp_path_factory.mktemp("tools")
    configuration = folder / "mcp.json"
    configuration.write_text(json.dumps({"mcpServers": {"stranger": command("stranger")}}))
    model = write_scripted(folder / "looker.gguf", randomly_cut(SAYS), template=TEMPLATE)
    with running(folder / "models", PUNA_MCP="1", PUNA_MCP_CONFIG=str(configuration)) as server:
        add_model(server, "looker", model)
        yield server


@pytest.fixture
def chat(visit: Callable[..., Visitor], looker: Server) -> Chat:
    return Chat(visit(looker, "looker:latest").tab())


def question(chat: Chat) -> Locator:
    return chat.root.get_by_role("group", name="Allow stranger/look_up?")


def offer_tools(chat: Chat) -> None:
    """Choose the server in the composer."""
    with chat.tab.page.expect_response("**/api/puna/mcp/tools"):
        chat.tab.button("Tools: none").click()
        chat.tab.menu("stranger")
    expect(chat.tab.button("Tools: stranger")).to_be_visible()


def calls_of(server: Server) -> int:
    return server.log.read_text().count("calls stranger/look_up")


def test_tools_are_offered_only_once_chosen_and_called_once_allowed(chat: Chat, looker: Server) -> None:
    assert "tools" not in chat.asked(lambda: chat.ask("Hello."))
    chat.expect_rest()
    before = calls_of(looker)
    offer_tools(chat)
    request = chat.asked(lambda: chat.ask(ASKS))
    assert "look_up" in [tool["function"]["name"] for tool in request["tools"]]
    expect(question(chat)).to_be_visible()
    expect(chat.answer).to_contain_text('"word": "fox"')
    assert calls_of(looker) == before, "it was called before anyone allowed it"
    chat.tab.button("Allow once", within=question(chat)).click()
    chat.expect_answer(ANIMAL)
    expect(chat.root.locator("article.message.tool")).to_contain_text("fox means <<1>>")
    assert calls_of(looker) == before + 1
    # Once is once.
    chat.ask(ASKS)
    expect(question(chat)).to_be_visible()
    chat.tab.button("Always", within=question(chat)).click()
    chat.expect_answer(ANIMAL)
    chat.ask(ASKS)
    chat.expect_answer(ANIMAL)
    expect(question(chat)).to_have_count(0)
    assert calls_of(looker) == before + 3


def test_denied_and_stopped_calls_do_not_run(chat: Chat, looker: Server) -> None:
    before = calls_of(looker)
    offer_tools(chat)
    chat.ask(ASKS)
    chat.tab.button("Deny", within=question(chat)).click()
    expect(chat.root.locator("article.message.tool")).to_contain_text("error: the user refused this call")
    chat.expect_answer(SAYS[0])
    chat.ask(ASKS)
    expect(question(chat)).to_be_visible()
    chat.tab.button("Stop the answer").click()
    expect(question(chat)).to_have_count(0)
    # A chat that is opened again runs nothing by itself.
    chat.tab.reload()
    run = chat.tab.button("Run the tool")
    expect(run).to_be_visible()
    assert calls_of(looker) == before
    run.click()
    chat.tab.button("Allow once", within=question(chat)).click()
    chat.expect_answer(ANIMAL)
    assert calls_of(looker) == before + 1


def test_page_of_a_server_without_tools_has_no_menu(
    chat: Chat, visit: Callable[..., Visitor], server: Server
) -> None:
    expect(chat.tab.button("Tools: none")).to_be_visible()
    other = Chat(visit(server).tab())
    expect(other.composer).to_be_visible()
    expect(other.tab.button("Tools: none")).to_have_count(0)
