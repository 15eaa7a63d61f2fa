"""The page in a real browser, with real servers and models."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from puna.server.settings import BUILT_PAGE
from tests.audio.sounds import chirps
from tests.e2e.servers import Server, add_model, endless, running
from tests.page.needs import find_chromium
from tests.page.scripts import TEMPLATE, TEXTS
from tests.scripted import randomly_cut, write_scripted
from tests.tiny.llama import TinyLlama, tiny_llama_gguf

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.page.tabs import Tab, Visitor


def _missing() -> str | None:
    """Return why these tests cannot run here, if they cannot."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed: pip install '.[test]'"
    if find_chromium() is None:
        return "there is no Chromium: apt-get install chromium"
    if not (BUILT_PAGE / "index.html").is_file():
        return "the page is not built: make page"
    return None


class _SkippedModule(pytest.Module):
    """A file of tests that cannot even be imported."""

    def collect(self) -> list[pytest.Item]:
        pytest.skip(_missing() or "", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Skips all files of this folder, with the reason, where they cannot run."""
    return _SkippedModule.from_parent(parent, path=module_path) if _missing() else None


class _Driver:
    """Playwright and the browser, as long as tests of this process may want them.

    Playwright's synchronous API keeps an event loop in this thread that counts as running; between the page's
    tests it does not, for tests that run loops of their own.
    """

    def __init__(self) -> None:
        from playwright.sync_api import sync_playwright

        from tests.page.tabs import launch

        path = find_chromium()
        assert path is not None
        self._playwright = sync_playwright().start()
        self._heard = tempfile.TemporaryDirectory()
        microphone = Path(self._heard.name) / "microphone.wav"
        microphone.write_bytes(chirps())
        self.browser = launch(self._playwright, path, microphone)
        self._loop = asyncio.get_running_loop()

    def resume(self) -> None:
        asyncio._set_running_loop(self._loop)

    def pause(self) -> None:
        asyncio._set_running_loop(None)

    def stop(self) -> None:
        self.resume()
        self.browser.close()
        self._playwright.stop()
        self._heard.cleanup()


@pytest.fixture(scope="session")
def _driver() -> Iterator[_Driver]:
    driver = _Driver()
    driver.pause()
    yield driver
    driver.stop()


@pytest.fixture
def browser(_driver: _Driver) -> Iterator[Browser]:
    """The browser of all tests; each has contexts of its own in it."""
    _driver.resume()
    yield _driver.browser
    _driver.pause()


@pytest.fixture(scope="session")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models beside the bundled ones: one says given texts, one never ends."""
    folder = tmp_path_factory.mktemp("gguf")
    config = TinyLlama(context=8192, seed=3)
    return {
        "scripted": write_scripted(folder / "scripted.gguf", randomly_cut(TEXTS), template=TEMPLATE),
        "endless": tiny_llama_gguf(folder / "endless.gguf", config, model=endless(config)),
    }


@pytest.fixture(scope="session")
def servers(
    tmp_path_factory: pytest.TempPathFactory, model_files: dict[str, Path]
) -> Iterator[Callable[..., Server]]:
    """Gives the one server with these settings and the models of `model_files`.

    It is for tests that leave it as they find it, but for its chats; who ends it starts one with `running`.
    """
    started: dict[frozenset[tuple[str, str]], Server] = {}
    with ExitStack() as stack:

        def server_with(**settings: str) -> Server:
            key = frozenset(settings.items())
            if key not in started:
                server = stack.enter_context(running(tmp_path_factory.mktemp("models"), **settings))
                for name, path in model_files.items():
                    add_model(server, name, path)
                started[key] = server
            return started[key]

        yield server_with


@pytest.fixture
def server(servers: Callable[..., Server]) -> Server:
    """The server without settings of its own, without chats."""
    server = servers()
    server.http.delete("/api/puna/chats").raise_for_status()
    return server


@pytest.fixture
def outlasting() -> Iterator[ExitStack]:
    """Holds what tabs still ask until the last of them is closed: servers and proxies of one test."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def visit(
    browser: Browser, request: pytest.FixtureRequest, tmp_path: Path, outlasting: ExitStack
) -> Iterator[Callable[..., Visitor]]:
    """Gives a visitor of a server, and fails the test if anything went wrong in its tabs.

    Options are of Playwright's `new_context`, `stored` what localStorage has from earlier visits.
    """
    from tests.page.tabs import GREEDY, Visitor

    visitors: list[Visitor] = []

    def arrive(
        address: Server | str,
        model: str = "scripted:latest",
        stored: dict[str, Any] | None = None,
        **options: Any,
    ) -> Visitor:
        url = address if isinstance(address, str) else address.url
        kept = {"puna.defaults": GREEDY, "puna.model": model} | (stored or {})
        visitor = Visitor.arrive(
            browser, url + "/", {name: json.dumps(value) for name, value in kept.items()}, **options
        )
        visitors.append(visitor)
        return visitor

    yield arrive
    problems = [problem for visitor in visitors for problem in visitor.told()]
    for number, visitor in enumerate(visitors):
        for at, page in enumerate(visitor.context.pages):
            if _failed(request.node) or problems:
                page.screenshot(path=tmp_path / f"visitor-{number}-tab-{at}.png")
        visitor.context.close()
    if _failed(request.node) or problems:
        print("Pictures of the tabs are in", tmp_path)
    assert problems == [], "\n".join(problems[:20])


@pytest.fixture
def tab(visit: Callable[..., Visitor], server: Server) -> Tab:
    """A tab of a new visitor, with a new chat with the scripted model."""
    return visit(server).tab()


_FAILED = pytest.StashKey[bool]()


def _failed(item: pytest.Item) -> bool:
    return item.stash.get(_FAILED, False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Notes failures, for pictures of the tabs."""
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report
