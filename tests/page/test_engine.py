"""The engine at work: what the live view shows of requests, steps, cells and prefixes."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.cluster.clusters import clustered
from tests.cluster.conftest import HAS_RAY
from tests.e2e.servers import Server
from tests.page.chat import answering
from tests.page.tabs import Tab, Visitor
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.page]

MODEL = "endless:latest"


@pytest.fixture
def engine(visit: Callable[..., Visitor], server: Server) -> Tab:
    server.unload()
    return visit(server).tab("#/engine")


def choose(tab: Tab, model: str = MODEL) -> None:
    """Show a model's engine, if there are several."""
    if tab.page.get_by_label("Model", exact=True).count():
        tab.page.get_by_label("Model", exact=True).select_option(model)


def panel(tab: Tab, title: str) -> Locator:
    return tab.page.get_by_role("region", name=title, exact=True)


def tile(tab: Tab, label: str) -> Locator:
    return tab.page.locator(".tile").filter(has_text=label).locator("b")


@pytest.mark.thorough
def test_idle_engine_says_how_to_begin(engine: Tab) -> None:
    expect(engine.page.get_by_text("No model is in memory")).to_be_visible()
    expect(panel(engine, "Requests")).to_contain_text("Nobody is waiting for anything.")


def test_running_answers_are_seen_as_sequences_steps_and_speed(server: Server, engine: Tab) -> None:
    with answering(server, 2):
        expect(panel(engine, "Sequences").locator(".state-running")).to_have_count(2)
        expect(tile(engine, "Running")).to_have_text("2")
        expect(tile(engine, "Generating")).to_have_text(re.compile(r"^[1-9]"))
        expect(tile(engine, "Step")).to_have_text(re.compile(r"\d (ms|s)$"))
        expect(panel(engine, "Requests").get_by_role("row")).to_have_count(3)
        expect(panel(engine, "Requests")).to_contain_text("writing")
        for title in ("Tokens per second", "Where the time goes"):
            expect(panel(engine, title).locator("canvas")).to_be_visible()
            engine.button(f"{title} as a table").click()
            expect(panel(engine, title).get_by_role("row")).not_to_have_count(0)
    expect(tile(engine, "Running")).to_have_text("0")
    expect(panel(engine, "Sequences").locator(".state-running")).to_have_count(0)


@pytest.mark.thorough
def test_labels_of_charts_are_not_cut_at_the_edge(server: Server, engine: Tab) -> None:
    with answering(server):
        chart = panel(engine, "Tokens per second").locator("canvas")
        expect(chart).to_be_visible()
        edge = """canvas => {
          const { width, height } = canvas;
          const labels = [0, height - 26 * devicePixelRatio, width, 26 * devicePixelRatio];
          const pixels = canvas.getContext("2d").getImageData(...labels).data;
          const isDrawn = (x) => Array.from({ length: labels[3] }, (_, y) => pixels[(y * width + x) * 4 + 3])
            .some((alpha) => alpha > 0);
          return [Array.from({ length: width }, (_, x) => x).some(isDrawn), isDrawn(width - 1)];
        }"""
        wait_until(lambda: chart.evaluate(edge)[0], "the labels")
        assert not chart.evaluate(edge)[1]


@pytest.mark.thorough
def test_cells_are_drawn_by_sequence_and_listed_as_a_table(server: Server, engine: Tab) -> None:
    with answering(server, 2):
        cells = panel(engine, "Cells of the caches")
        expect(cells.locator("canvas")).to_be_visible()
        expect(cells).to_contain_text(re.compile(r"[1-9]\d* shared"))
        sequences = cells.get_by_role("list", name="Sequences: choose one to see its cells")
        sequences.get_by_role("button").first.click()
        expect(sequences.get_by_role("button").first).to_have_attribute("aria-pressed", "true")
        engine.button("Cells of the caches as a table").click()
        expect(cells.get_by_role("row")).not_to_have_count(1)


def test_reused_prompts_are_hits_of_the_prefix_tree(server: Server, engine: Tab) -> None:
    with answering(server):
        pass
    with answering(server):
        tree = panel(engine, "Prefix tree")
        expect(tree).to_contain_text(re.compile(r"1 prompt began like an earlier one"))
        expect(tree).to_contain_text(re.compile(r"[1-9]\d* tokens not read again"))
        engine.button("Prefix tree as a table").click()
        expect(tree.get_by_role("columnheader", name="Hits")).to_be_visible()


@pytest.mark.thorough
def test_paused_view_stands_still_and_goes_on(server: Server, engine: Tab) -> None:
    with answering(server):
        expect(tile(engine, "Running")).to_have_text("1")
        engine.button("Pause").click()
        expect(engine.button("Go on")).to_have_attribute("aria-pressed", "true")
    assert tile(engine, "Running").inner_text() == "1"
    engine.button("Go on").click()
    expect(tile(engine, "Running")).to_have_text("0")


@pytest.mark.thorough
def test_request_is_ended_and_model_unloaded_from_the_view(server: Server, engine: Tab) -> None:
    with answering(server) as runs:
        requests = panel(engine, "Requests")
        requests.get_by_role("button", name=re.compile("^End the request")).click()
        expect(requests).to_contain_text("Nobody is waiting for anything.")
        states = {run["id"]: run["state"] for run in server.http.get("/api/puna/runs").json()["runs"]}
        assert states[runs[0]] != "running"
    engine.button(f"Unload {MODEL}").click()
    expect(engine.page.get_by_text("No model is in memory")).to_be_visible()


@pytest.mark.thorough
def test_nothing_is_asked_of_the_engine_when_nobody_looks(server: Server, engine: Tab) -> None:
    with answering(server):
        expect(tile(engine, "Running")).to_have_text("1")
        with engine.page.expect_event("requestfailed", lambda request: "/api/puna/live" in request.url):
            engine.go("#/settings")
        expect(engine.heading).to_have_text("Settings")


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.skipif(not HAS_RAY, reason="ray is not installed: pip install '.[test]'")
def test_each_replica_shows_its_own_engine(
    visit: Callable[..., Visitor], outlasting: ExitStack, tmp_path: Path
) -> None:
    cluster = outlasting.enter_context(clustered(tmp_path, 1, PUNA_REPLICAS="2"))
    body = {"model": "demo", "prompt": "Hello", "stream": False, "options": {"num_predict": 4, "seed": 1}}
    cluster.server.http.post("/api/generate", json=body).raise_for_status()
    wait_until(lambda: len(cluster.replicas("demo")) == 2, "the second replica")
    tab = visit(cluster.server, "demo:latest").tab("#/engine")
    replica = tab.page.get_by_label("Replica", exact=True)
    expect(replica.get_by_role("option")).to_have_count(2)
    for number, prompts in [(1, 0), (0, 1), (1, 0)]:
        replica.select_option(index=number)
        expect(panel(tab, "Prefix tree")).to_contain_text(f"{prompts} did not")
