"""Takes pictures of every view of the page: light, dark and narrow, from a server with the bundled models.

    python tools/screenshots.py FOLDER [VIEW...]

Writes FOLDER/page-VIEW-light.png, -dark.png and -narrow.png. Needs Chromium, playwright and the built page.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, Page, expect, sync_playwright

WIDE, NARROW = (1280, 800), (390, 844)
#: Light and dark of the wide window, light of the narrow one: its size, scheme and the pixels of a CSS pixel.
LOOKS = {"light": (WIDE, "light", 2), "dark": (WIDE, "dark", 2), "narrow": (NARROW, "light", 2)}

GREEDY = {"temperature": 0, "seed": 1}
#: How long the engine works before its picture is taken, so that its charts have something to show.
WORK_S = 20
#: High enough for the cells and the prefix tree, which stand below the charts.
ENGINE_HEIGHT = 1900

QUESTION = (
    "Compare three ways to find out whether a number is prime. Show the code of the best for small numbers."
)
ANSWER = """\
Three common ways, for a number $n$:

| Way            | Time                    | Certain             |
| -------------- | ----------------------- | ------------------- |
| Trial division | $O(\\sqrt n)$            | yes                 |
| Sieve          | $O(n \\log \\log n)$      | yes, for all below  |
| Miller–Rabin   | $O(k \\log^3 n)$         | but for $4^{-k}$    |

For small numbers, **trial division** is hard to beat:

```python
def is_prime(n: int) -> bool:
    \"\"\"Whether `n` has no divisor but 1 and itself.\"\"\"
    if n < 4:
        return n > 1
    if n % 2 == 0 or n % 3 == 0:
        return False
    # All other primes are next to a multiple of six.
    return all(n % d and n % (d + 2) for d in range(5, int(n**0.5) + 1, 6))
```

It looks at one number in three, up to the root of $n$.
"""
OTHERS = [
    "Plan a week in Lisbon",
    "Regular expressions for dates",
    "Why is the sky blue?",
    "Letter to the landlord",
]


@dataclass
class Site:
    """A running server with some chats."""

    url: str
    http: httpx.Client
    chat: str


@contextmanager
def serving(folder: Path) -> Iterator[Site]:
    """Start a server with a home of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PUNA_", "OLLAMA_"))}
    env = {**kept, "PUNA_HOME": str(folder), "PUNA_HOST": "127.0.0.1:0"}
    command = [sys.executable, "-m", "puna", "serve"]
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            assert server.stdout is not None
            url = "http://" + server.stdout.readline().split()[2]
            with httpx.Client(base_url=url, timeout=120) as http:
                for title in reversed(OTHERS):
                    _add_chat(http, title, title, folder="Home" if "Li" in title else "")
                chat = _add_chat(http, "Prime numbers", QUESTION, ANSWER, pinned=True)
                yield Site(url, http, chat)
        finally:
            server.terminate()


def _add_chat(http: httpx.Client, title: str, *contents: str, folder: str = "", pinned: bool = False) -> str:
    settings = {"model": "demo:latest", "options": GREEDY}
    made = http.post("/api/puna/chats", json={"title": title, "folder": folder, "settings": settings})
    chat: str = made.raise_for_status().json()["id"]
    parent = None
    for role, content in zip(("user", "assistant"), contents, strict=False):
        body = {"parent": parent, "role": role, "content": content}
        parent = http.post(f"/api/puna/chats/{chat}/messages", json=body).raise_for_status().json()["id"]
    http.patch(f"/api/puna/chats/{chat}", json={"pinned": pinned}).raise_for_status()
    return chat


@contextmanager
def opened(
    browser: Browser, site: Site, look: str, place: str, *, tall: int = 0, **stored: Any
) -> Iterator[Page]:
    """Open a place of the page in a browser that has `stored` in its localStorage.

    A wide window is `tall` pixels high, if that is given.
    """
    (width, height), scheme, scale = LOOKS[look]
    height = tall if tall and look != "narrow" else height
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,  # type: ignore[arg-type]
        device_scale_factor=scale,
        reduced_motion="reduce",
        locale="en-GB",
    )
    for name, value in stored.items():
        context.add_init_script(f"localStorage.setItem('puna.{name}', {json.dumps(value)!r})")
    page = context.new_page()
    page.goto(f"{site.url}/{place}")
    expect(page.locator("main[aria-busy=true], [aria-busy=true]")).to_have_count(0)
    try:
        yield page
    finally:
        context.close()


def take_chat(browser: Browser, site: Site, look: str, path: Path) -> None:
    with opened(browser, site, look, f"#/chat/{site.chat}") as page:
        expect(page.locator(".katex").last).to_be_visible()
        expect(page.locator(".hljs-keyword").first).to_be_visible()
        page.evaluate("document.fonts.ready.then(() => true)")
        page.get_by_role("region", name="Conversation").evaluate("element => { element.scrollTop = 0 }")
        page.screenshot(path=path)


def take_inside(browser: Browser, site: Site, look: str, path: Path) -> None:
    defaults = {"options": {**GREEDY, "num_predict": 160}}
    with opened(browser, site, look, "#/chat", defaults=defaults, model="demo:latest") as page:
        page.keyboard.press("Control+i")
        message = page.get_by_role("textbox", name="Message", exact=True)
        message.fill("Tell me a story about a fox.")
        message.press("Enter")
        expect(page.locator("article.assistant .stats")).to_be_visible(timeout=60_000)
        chat = page.url.rpartition("/")[2]
        tokens = page.locator(".tokens .token")
        unsure = tokens.locator("xpath=self::*[contains(@class, 'p2') or contains(@class, 'p3')]").nth(2)
        unsure.scroll_into_view_if_needed()
        unsure.focus()
        expect(page.get_by_role("dialog", name="Alternatives")).to_be_visible()
        page.screenshot(path=path)
        site.http.delete(f"/api/puna/chats/{chat}")


def take_models(browser: Browser, site: Site, look: str, path: Path) -> None:
    with opened(browser, site, look, "#/models") as page:
        expect(page.get_by_text("demo-vision").first).to_be_visible()
        page.wait_for_load_state("networkidle")  # whether each fits the memory is asked for one by one
        page.screenshot(path=path)


def take_model(browser: Browser, site: Site, look: str, path: Path) -> None:
    with opened(browser, site, look, "#/models/demo:latest") as page:
        expect(page.locator("h1")).to_contain_text("demo")
        page.wait_for_load_state("networkidle")
        page.screenshot(path=path)


def take_engine(browser: Browser, site: Site, look: str, path: Path) -> None:
    with opened(browser, site, look, "#/engine", tall=ENGINE_HEIGHT) as page, _working(site):
        expect(page.locator(".state-running")).to_have_count(3, timeout=60_000)
        page.wait_for_timeout(WORK_S * 1000)
        page.screenshot(path=path)


@contextmanager
def _working(site: Site) -> Iterator[None]:
    """Three clients ask for long stories, one after the other, for the length of the block."""
    ending = threading.Event()

    def client(number: int) -> None:
        animal = ("fox", "bear", "cat")[number]
        with httpx.Client(base_url=site.url, timeout=120) as http:
            while not ending.is_set():
                prompt = f"Tell me a long story about a {animal}."
                options = {"temperature": 1, "seed": number, "num_predict": 400, "num_ctx": 2048}
                body = {"model": "demo", "prompt": prompt, "options": options, "ignore_eos": True}
                with http.stream("POST", "/api/generate", json=body) as reply:
                    for _ in reply.iter_lines():
                        if ending.is_set():
                            break

    clients = [threading.Thread(target=client, args=(number,)) for number in range(3)]
    for each in clients:
        each.start()
    try:
        yield
    finally:
        ending.set()
        for each in clients:
            each.join()


def take_settings(browser: Browser, site: Site, look: str, path: Path) -> None:
    with opened(browser, site, look, "#/settings") as page:
        expect(page.get_by_role("heading", name="Appearance")).to_be_visible()
        page.screenshot(path=path)


VIEWS: dict[str, Callable[[Browser, Site, str, Path], None]] = {
    "chat": take_chat,
    "inside": take_inside,
    "models": take_models,
    "model": take_model,
    "engine": take_engine,
    "settings": take_settings,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "views", nargs="*", metavar="VIEW", help=f"of {', '.join(VIEWS)}; all if none is given"
    )
    given = parser.parse_args()
    if unknown := set(given.views) - set(VIEWS):
        parser.error(f"there is no view {', '.join(sorted(unknown))}")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        parser.error("there is no Chromium: apt-get install chromium")
    given.folder.mkdir(parents=True, exist_ok=True)
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with (
        tempfile.TemporaryDirectory() as home,
        serving(Path(home)) as site,
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=chromium, args=arguments) as browser,
    ):
        for view in given.views or VIEWS:
            for look in LOOKS:
                path = given.folder / f"page-{view}-{look}.png"
                VIEWS[view](browser, site, look, path)
                print(path)


if __name__ == "__main__":
    main()
