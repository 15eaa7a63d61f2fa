"""Tabs of a real browser that show the page, and everything that goes wrong in them.

Whatever a test is about, it fails if a script throws, the policy of the page is violated, a stranger's text
runs (`window.__pwned`), or anything is requested of another origin.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Locator,
    Page,
    Playwright,
    Request,
    WebError,
    expect,
)

from tests.waiting import wait_until

#: How long a tab is waited for; what comes earlier is not waited for.
PATIENCE_MS = 60_000.0

#: Answers of new chats are the same every time.
GREEDY = {"options": {"temperature": 0, "seed": 1}}

#: The views besides chats, by their places, with their headings.
VIEWS = {"#/models": "Models", "#/engine": "Engine", "#/settings": "Settings"}

#: Runs in every document before its own scripts, also in frames. Chromium 156 tells of handlers in
#: documents that are only parsed, as when the page cleans a stranger's HTML, and then names no element.
_WATCH = """
addEventListener("securitypolicyviolation", (event) => {
  if (event.effectiveDirective === "script-src-attr" && !(event.target instanceof Element)) return;
  window.__tell(`policy: ${event.effectiveDirective} forbids ${event.blockedURI}`);
});
Object.defineProperty(window, "__pwned", {
  set(value) { window.__tell(`pwned: ${value}`); },
  get() { return undefined; },
});
"""

#: The console's form of the same, which does not say where the handler is.
_INLINE_HANDLER = "Executing inline event handler violates"

_FOREIGN_HOSTS = "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"


def launch(playwright: Playwright, path: str, microphone: Path) -> Browser:
    """Start the browser, which reaches nothing but this machine. Its microphone hears a WAV file."""
    arguments = [f"--host-resolver-rules={_FOREIGN_HOSTS}", "--disable-gpu", "--lang=en-US"]
    arguments += ["--use-fake-device-for-media-stream", f"--use-file-for-fake-audio-capture={microphone}"]
    if os.geteuid() == 0:
        arguments.append("--no-sandbox")
    expect.set_options(timeout=PATIENCE_MS)
    return playwright.chromium.launch(executable_path=path, args=arguments)


@dataclass
class Visitor:
    """A person with a browser of their own: its tabs share what the page keeps in it."""

    context: BrowserContext
    origin: str
    address: str
    problems: list[str] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)
    _forgiven: list[re.Pattern[str]] = field(default_factory=list)

    @classmethod
    def arrive(
        cls, browser: Browser, address: str, stored: dict[str, str] | None = None, **options: Any
    ) -> Visitor:
        """Return a visitor of the page at `address`, whose browser has `stored` in its localStorage."""
        options = {"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce"} | options
        context = browser.new_context(service_workers="block", accept_downloads=True, **options)
        context.set_default_timeout(PATIENCE_MS)
        parts = urlsplit(address)
        visitor = cls(context, f"{parts.scheme}://{parts.netloc}", address)
        visitor._watch()
        if stored:
            visitor.store(stored)
        return visitor

    def store(self, values: dict[str, str]) -> None:
        """Have the browser keep `values` from earlier visits, unless the page has changed them since."""
        for name, value in values.items():
            keep = f"localStorage.getItem({name!r}) ?? localStorage.setItem({name!r}, {value!r})"
            self.context.add_init_script(f"try {{ {keep} }} catch {{}}")

    def tab(self, place: str = "") -> Tab:
        """Open a tab at a place of the page such as `#/settings`."""
        return Tab(self, self.context.new_page()).open(place)

    def forgive(self, pattern: str) -> None:
        """Do not count problems that match, which the test causes itself."""
        self._forgiven.append(re.compile(pattern))

    def told(self) -> list[str]:
        """Return the problems so far, but for forgiven ones."""
        for page in self.context.pages:
            if not page.is_closed():
                page.evaluate("0")  # events that are under way arrive first
        return [each for each in self.problems if not any(one.search(each) for one in self._forgiven)]

    def _watch(self) -> None:
        self.context.expose_binding("__tell", lambda _, text: self.problems.append(str(text)))
        self.context.add_init_script(_WATCH)
        self.context.on("weberror", self._note_error)
        self.context.on("console", self._note_console)
        self.context.on("request", self._note_request)
        self.context.on("requestfailed", self._note_failure)
        self.context.on("dialog", self._note_dialog)

    def _note_error(self, error: WebError) -> None:
        self.problems.append(f"thrown: {error.error.message}")

    def _note_console(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith(_INLINE_HANDLER):
            self.problems.append(f"console: {message.text} ({message.location['url']})")

    def _note_request(self, request: Request) -> None:
        self.requested.append(request.url)
        if not request.url.startswith((self.origin + "/", "data:", "blob:")):
            self.problems.append(f"foreign: {request.url}")

    def _note_failure(self, request: Request) -> None:
        if request.failure == "csp" and (problem := f"foreign: {request.url}") in self.problems:
            self.problems.remove(problem)  # the policy stopped it before it was sent, and tells of it itself
            self.requested.remove(request.url)

    def _note_dialog(self, dialog: Dialog) -> None:
        self.dialogs.append(dialog.type)
        if dialog.type == "beforeunload":
            dialog.accept()
        else:
            self.problems.append(f"dialog: {dialog.type} {dialog.message}")
            dialog.dismiss()


class Tab:
    """A tab of a visitor. Parts of the page are found by their roles and names, as people find them."""

    def __init__(self, visitor: Visitor, page: Page) -> None:
        self.visitor = visitor
        self.page = page

    def open(self, place: str = "") -> Tab:
        """Go to a place of the page, and wait until it has started and its view is loaded."""
        self.page.goto(self.visitor.address + place)
        return self._started()

    def reload(self) -> Tab:
        self.page.reload()
        return self._started()

    def _started(self) -> Tab:
        expect(self.page.locator("main:not([aria-busy=true])")).to_be_visible()
        expect(self.page.locator(".view > [aria-busy=true]")).to_have_count(0)
        return self

    def go(self, place: str) -> None:
        """Follow a link within the page, without loading it anew."""
        self.page.evaluate("place => { location.hash = place }", place)

    def show(self, place: str, heading: str) -> None:
        """Follow a link within the page, and wait until the view with this heading is there as a whole."""
        self.go(place)
        expect(self.heading).to_have_text(heading)
        expect(self.page.locator("[aria-busy=true]")).to_have_count(0)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def button(self, name: str, *, within: Locator | None = None) -> Locator:
        return (within or self.page).get_by_role("button", name=name, exact=True)

    @property
    def heading(self) -> Locator:
        return self.page.get_by_role("heading", level=1)

    @property
    def toasts(self) -> Locator:
        return self.page.get_by_role("region", name="Messages")

    @property
    def focused(self) -> Locator:
        return self.page.locator(":focus")

    def dialog(self, name: str) -> Locator:
        return self.page.get_by_role("dialog", name=name)

    def menu(self, action: str) -> None:
        """Choose from the menu that is open."""
        items = self.page.get_by_role("menu").locator("[role^=menuitem]")
        items.filter(has=self.page.get_by_text(action, exact=True)).click()

    def wait_for_font(self, name: str) -> None:
        """Wait until a font of this name is there; the policy of the page forbids `wait_for_function`."""
        fonts = "[...document.fonts].filter((font) => font.status === 'loaded').map((font) => font.family)"
        wait_until(
            lambda: any(each.startswith(name) for each in self.page.evaluate(fonts)), f"the font {name}"
        )

    def expect_clipboard(self, text: str) -> None:
        """Wait until this text has been copied."""
        read = "navigator.clipboard.readText()"
        wait_until(lambda: self.page.evaluate(read) == text, "the text in the clipboard")

    def download(self, start: Callable[[], None]) -> tuple[str, str]:
        """Return the name and the text of the file that `start` saves."""
        with self.page.expect_download() as saved:
            start()
        return saved.value.suggested_filename, Path(saved.value.path()).read_text()

    def choose(self, start: Callable[[], None], *files: Path) -> None:
        """Give `files` to the chooser that `start` opens."""
        with self.page.expect_file_chooser() as chooser:
            start()
        chooser.value.set_files(list(files))
