"""The view of models: what there is, what it takes, and everything that can be done with it."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Route, expect

from tests.e2e.servers import Server, add_model, running
from tests.page.chat import Chat
from tests.page.proxy import proxied
from tests.page.tabs import Tab, Visitor
from tests.registry.registries import Published, Registry, serving
from tests.tiny.adapters import TinyAdapter
from tests.tiny.llama import TinyLlama

pytestmark = [pytest.mark.e2e, pytest.mark.page]


@pytest.fixture
def models(visit: Callable[..., Visitor], server: Server) -> Tab:
    return visit(server).tab("#/models")


@pytest.fixture
def own(outlasting: ExitStack, tmp_path: Path, model_files: dict[str, Path]) -> Server:
    """A server of the test's own, which may pull from this machine."""
    server = outlasting.enter_context(running(tmp_path / "models", PUNA_PRIVATE_REGISTRIES="127.0.0.1"))
    add_model(server, "scripted", model_files["scripted"])
    return server


def row(tab: Tab, name: str) -> Locator:
    cell = tab.page.get_by_role("rowheader").filter(has=tab.page.get_by_role("link", name=name, exact=True))
    return tab.page.get_by_role("row").filter(has=cell)


def expect_fit(tab: Tab, name: str) -> None:
    """Wait until the list says whether a model fits the memory: until then it asks about the model."""
    expect(row(tab, name)).to_contain_text(re.compile("fits|In memory", re.IGNORECASE))


def act(tab: Tab, name: str, action: str) -> None:
    """Choose from the menu of a model in the list."""
    tab.button(f"Actions for {name}").click()
    tab.menu(action)


def test_models_are_listed_with_size_type_abilities_and_context(models: Tab) -> None:
    expect(row(models, "demo")).to_contain_text("MB")
    expect(row(models, "demo")).to_contain_text("Q8_0")
    expect(row(models, "demo")).to_contain_text("completion")
    expect(row(models, "demo")).to_contain_text("1,024")
    expect(row(models, "demo-vision")).to_contain_text("vision")
    expect(row(models, "endless")).to_contain_text("8,192")
    expect_fit(models, "demo-vision")


@pytest.mark.thorough
def test_list_is_searched_and_sorted(models: Tab) -> None:
    expect(row(models, "demo")).to_be_visible()
    models.press("/")
    models.page.keyboard.type("vision")
    expect(row(models, "demo")).to_have_count(0)
    expect(row(models, "demo-vision")).to_be_visible()
    models.page.get_by_label("Search models").fill("no such model")
    expect(models.page.get_by_text("Nothing found")).to_be_visible()
    models.page.get_by_label("Search models").fill("")
    names = models.page.get_by_role("rowheader").get_by_role("link")
    in_order = sorted(names.all_inner_texts())
    expect(names).to_have_text(in_order)
    models.button("Name").click()
    expect(names).to_have_text(in_order[::-1])
    models.button("Context").click()
    expect(names.first).to_have_text(re.compile("endless|scripted"))


@pytest.mark.thorough
def test_model_is_loaded_kept_and_unloaded(server: Server, models: Tab) -> None:
    server.unload()
    act(models, "demo", "For an hour")
    expect(models.toasts).to_contain_text("demo stays in memory for an hour without requests.")
    expect(row(models, "demo")).to_contain_text("In memory")
    [loaded] = server.http.get("/api/ps").json()["models"]
    assert loaded["name"] == "demo:latest"
    act(models, "demo", "Unload")
    expect(row(models, "demo")).not_to_contain_text("In memory")
    assert server.http.get("/api/ps").json()["models"] == []


@pytest.mark.thorough
def test_model_is_shown_with_all_that_is_known_of_it(models: Tab) -> None:
    models.page.get_by_role("link", name="demo", exact=True).click()
    expect(models.heading).to_have_text("demo")
    expect(models.page.get_by_role("tabpanel")).to_contain_text("llama")

    def shown(name: str) -> Locator:
        models.page.get_by_role("tab", name=name).click()
        return models.page.get_by_role("tabpanel")

    expect(shown("Memory")).to_contain_text("MB")
    expect(shown("Template")).to_contain_text("messages")
    expect(shown("Tensors")).to_contain_text("token_embd.weight")
    metadata = shown("Metadata")
    metadata.get_by_label("Filter keys and values").fill("context_length")
    expect(metadata).to_contain_text("1024")
    expect(shown("Modelfile")).to_contain_text("FROM")
    models.page.get_by_role("link", name="All models").click()
    expect(row(models, "demo")).to_be_visible()


@pytest.mark.thorough
def test_chat_begins_with_the_model_that_is_shown(visit: Callable[..., Visitor], server: Server) -> None:
    tab = visit(server).tab("#/models/demo:latest")
    tab.button("Chat").click()
    expect(Chat(tab).root.locator(".model-button")).to_have_text("demo")


@pytest.mark.thorough
def test_model_that_is_not_there_says_so(visit: Callable[..., Visitor], server: Server) -> None:
    visitor = visit(server)
    visitor.forgive("404")
    tab = visitor.tab("#/models/team/nothing:here")
    expect(tab.page.get_by_text("This model is not here")).to_be_visible()


def test_model_is_copied_and_deleted_after_a_question(server: Server, models: Tab) -> None:
    act(models, "endless", "Copy…")
    name = models.dialog("Copy endless").get_by_label("Name of the copy")
    name.fill("demo")
    expect(models.page.get_by_text("There is a model of this name.")).to_be_visible()
    name.fill("twin")
    models.press("Enter")
    expect_fit(models, "twin")
    act(models, "twin", "Delete…")
    sure = models.dialog("Delete twin?")
    expect(models.button("Cancel", within=sure)).to_be_focused()
    models.button("Delete", within=sure).click()
    expect(row(models, "twin")).to_have_count(0)
    assert "twin:latest" not in [model.model for model in server.client.list().models]


def test_model_is_made_of_a_modelfile_and_chatted_with(server: Server, models: Tab) -> None:
    models.button("Create").click()
    editor = models.page.get_by_role("textbox", name="Modelfile")
    editor.fill("FROM scripted\nNONSENSE 1\n")
    expect(models.page.get_by_text("NONSENSE").last).to_be_visible()
    expect(models.page.locator("form.create")).to_contain_text("line 2", ignore_case=True)
    editor.fill('FROM scripted\nSYSTEM """Be short."""\nPARAMETER temperature 0\nPARAMETER seed 1\n')
    models.page.get_by_label("Name of the model").fill("short")
    models.button("Create").click()
    expect(models.heading).to_have_text("short")
    expect(models.page.get_by_role("tabpanel")).to_contain_text("Be short.")
    server.client.delete("short")


@pytest.mark.thorough
def test_model_is_made_of_a_file_that_is_uploaded(
    server: Server, models: Tab, model_files: dict[str, Path]
) -> None:
    models.button("Create").click()
    models.choose(models.button("Add files").click, model_files["endless"])
    expect(models.page.get_by_role("textbox", name="Modelfile")).to_have_value(
        re.compile(r"FROM \./endless.gguf")
    )
    models.page.get_by_label("Name of the model").fill("uploaded")
    models.page.get_by_label("Quantise").select_option("Q8_0")
    models.button("Create").click()
    expect(models.heading).to_have_text("uploaded")
    expect(models.page.locator(".model-head")).to_contain_text("Q8_0")
    server.client.delete("uploaded")


@pytest.mark.thorough
def test_model_with_an_adapter_is_made_shown_and_used(
    server: Server, models: Tab, model_files: dict[str, Path], tmp_path: Path
) -> None:
    models.visitor.forgive("/api/blobs/")  # the page asks first whether the server has the file
    names = {"q_proj": "attn_q", "down_proj": "ffn_down"}
    torch_model = TinyLlama(context=8192, seed=3).build()
    adapter = TinyAdapter(tuple(names)).write_gguf(tmp_path / "lora.gguf", "llama", torch_model, names)
    models.button("Create").click()
    models.page.get_by_role("textbox", name="Modelfile").fill("FROM endless\nPARAMETER num_predict 12\n")
    models.choose(models.button("Add files").click, adapter)
    expect(models.page.get_by_role("textbox", name="Modelfile")).to_have_value(
        re.compile(r"ADAPTER \./lora\.gguf")
    )
    models.page.get_by_label("Name of the model").fill("adapted")
    models.button("Create").click()
    expect(models.heading).to_have_text("adapted")
    expect(models.page.get_by_role("tabpanel").get_by_role("row")).to_have_text(
        ["NumberNameScale", re.compile("^0lora.*1$")]
    )
    models.button("Chat").click()
    chat = Chat(models)
    chat.ask("Go on.")
    chat.expect_answer("Cut after 12 tokens")
    answers = {}
    for name in ("adapted", "endless"):
        options = {"temperature": 0, "seed": 1, "num_predict": 12}
        reply = server.client.chat(name, [{"role": "user", "content": "Go on."}], options=options)
        answers[name] = reply.message.content
    id = models.page.url.rpartition("/")[2]
    kept = server.http.get(f"/api/puna/chats/{id}").json()["messages"][1]["content"]
    assert kept == answers["adapted"] != answers["endless"]
    server.client.delete("adapted")


@pytest.mark.thorough
def test_model_is_quantised_with_its_progress_and_answers(
    server: Server, visit: Callable[..., Visitor], outlasting: ExitStack
) -> None:
    proxy = outlasting.enter_context(proxied(server.url))
    models = visit(proxy.url).tab("#/models")
    held = proxy.hold(b"/api/create", rb'"total":[^\n]*\n')
    act(models, "endless", "Quantise…")
    quantise = models.dialog("Quantise endless")
    quantise.get_by_label("Type").select_option("Q8_0")
    expect(quantise.get_by_label("Name of the result")).to_have_value("endless:q8_0")
    models.button("Quantise", within=quantise).click()
    progress = quantise.get_by_role("region", name="Making endless:q8_0")
    expect(progress.get_by_role("progressbar")).to_be_visible()
    expect(models.button("Quantise", within=quantise)).to_be_disabled()
    held.open()
    expect(models.heading).to_have_text("endless:q8_0")
    expect(models.page.locator(".model-head")).to_contain_text("Q8_0")
    models.show("#/models", "Models")
    expect(row(models, "endless:q8_0")).to_contain_text("Q8_0")
    act(models, "endless:q8_0", "Chat with it")
    chat = Chat(models)
    chat.set_option("num_predict", "8")
    chat.ask("Go on.")
    chat.expect_answer("Cut after 8 tokens")
    expect(chat.answer.locator(".message-head")).to_have_text("endless:q8_0")
    server.client.delete("endless:q8_0")


def test_pull_has_a_bar_for_each_part_is_cancelled_and_goes_on(
    own: Server, visit: Callable[..., Visitor], model_files: dict[str, Path]
) -> None:
    held = threading.Event()

    def hold(handler: BaseHTTPRequestHandler) -> bool:
        if "/blobs/" in handler.path:
            held.wait(60)
        return False

    def allow_http(route: Route) -> None:
        """Registries of tests have no TLS, which the page does not offer to do without."""
        route.continue_(post_data=json.dumps({**route.request.post_data_json, "insecure": True}))

    visitor = visit(own)
    visitor.context.route("**/api/pull", allow_http)
    tab = visitor.tab("#/models")
    with serving(Registry(Published.of(model_files["endless"].read_bytes()), intercept=hold)) as registry:
        tab.page.get_by_label("Pull a model").fill(registry.name)
        tab.press("Enter")
        pull = tab.page.get_by_role("region", name=registry.name)
        expect(pull.get_by_role("progressbar").first).to_be_visible()
        tab.button("Cancel", within=pull).click()
        expect(pull).to_contain_text("stopped")
        held.set()
        tab.button("Resume", within=pull).click()
        expect(pull.locator(".badge")).to_have_text("done")
        expect(pull.get_by_role("progressbar").nth(2)).to_be_attached()
        expect(tab.page.get_by_role("rowheader").filter(has_text="team/model")).to_be_visible()


@pytest.mark.thorough
def test_pull_of_nothing_says_why_it_failed(own: Server, visit: Callable[..., Visitor]) -> None:
    tab = visit(own).tab("#/models")
    tab.button("Pull").click()
    expect(tab.page.get_by_role("alert")).to_have_text("Say which model.")
    tab.page.get_by_label("Pull a model").fill("127.0.0.1:9/team/none")
    tab.button("Pull").click()
    pull = tab.page.get_by_role("region", name="127.0.0.1:9/team/none")
    expect(pull.locator(".badge")).to_have_text("failed")
    expect(pull.locator(".notice.error")).to_be_visible()


@pytest.mark.thorough
def test_list_follows_changes_made_elsewhere(server: Server, models: Tab) -> None:
    expect(row(models, "demo")).to_be_visible()
    models.visitor.forgive("404")  # this tab may ask about a model while the other one deletes it
    server.client.copy("endless", "elsewhere")
    other = models.visitor.tab("#/models")
    expect_fit(other, "elsewhere")
    act(other, "elsewhere", "Delete…")
    other.button("Delete", within=other.dialog("Delete elsewhere?")).click()
    expect(row(other, "elsewhere")).to_have_count(0)
    models.go("#/settings")
    models.go("#/models")
    expect(row(models, "demo")).to_be_visible()
    expect(row(models, "elsewhere")).to_have_count(0)
