"""The owner's side of a model's renderer process."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil

from puna import confined
from puna.chat.templates import jinja
from puna.chat.templates.choose import ChatTemplate
from puna.chat.templates.messages import Chat, Insert, Think
from puna.chat.templates.renderer.protocol import (
    MAX_REPLY_BYTES,
    OVERGROWN,
    Close,
    FromRenderer,
    Opened,
    OpenTemplate,
    Rendered,
    RendererFailure,
    RendererReady,
    RenderFrom,
    ToRenderer,
)
from puna.confined import OUT_OF_MEMORY, OUT_OF_TIME, START_PATIENCE_S, encoded, frame
from puna.errors import PunaError, RendererError, RequestError

_decoder: msgspec.msgpack.Decoder[FromRenderer] = msgspec.msgpack.Decoder(FromRenderer)

Reply = TypeVar("Reply", bound=FromRenderer)
Answer = TypeVar("Answer")

#: Ends by signals caused by the process's own code; others come from the system or its operator.
_OWN_FAULTS = (
    -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL,
    -signal.SIGABRT, -signal.SIGTRAP, -signal.SIGSYS,
)  # fmt: skip


class Renderer:
    """Renders chat templates in a process of its own, one request at a time.

    The process starts with the first request or `start`, starts again after a template ended it, and ends
    with this object. Only a request waits for a start. `rendering` is for one thread at a time; everything
    else is for any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._process: _Process | None = None
        self._end: Callable[[], object] = lambda: None

    def start(self) -> None:
        """Start the process ahead of the first request. Raises RendererError if that fails."""
        self._running()

    def close(self) -> None:
        """End the process. A rendering in progress fails."""
        with self._lock:
            self._closed = True
            self._end()

    def _running(self) -> _Process:
        with self._lock:
            if self._closed:
                raise RendererError("the renderer of chat templates is closed")
            if self._process is None:
                self._process = _Process.start()
                self._end = weakref.finalize(self, _Process.end, self._process)
            return self._process

    @contextlib.contextmanager
    def rendering(
        self, template: ChatTemplate, prompt: Chat | Insert | None = None, think: Think = None
    ) -> Iterator[Rendering]:
        """Open a request, whose prompt can be rendered any number of times.

        Raises TemplateError if the template does not parse, TemplateLimitError, RendererError, and
        RequestError for a prompt that cannot be passed on.
        """
        try:
            opening = encoded(OpenTemplate(template, prompt, think))
        except (OverflowError, RecursionError, TypeError, UnicodeError) as error:
            raise RequestError(f"the conversation cannot be rendered: {error}") from error
        rendering = Rendering(self, opening)
        try:
            yield rendering
        finally:
            rendering.close()

    def open(self, opening: bytes) -> tuple[_Process, Opened]:
        """Return a process that has begun the request `opening`, and its reply."""
        process = self._running()
        return process, self.reply(process, opening, Opened)

    def reply(self, process: _Process, message: bytes, kind: type[Reply]) -> Reply:
        """Return the process's reply to `message`; if the process ends, replace it and raise its error."""
        try:
            reply = process.ask(message)
        except BaseException:
            self._replace(process)
            raise
        match reply:
            case RendererFailure(kind=name, message=reason):
                raise PunaError.of_kind(name, reason)
            case kind():
                return reply
        self._replace(process)
        raise RendererError(f"the renderer of chat templates answered {type(reply).__name__} out of turn")

    def _replace(self, process: _Process) -> None:
        with self._lock:
            self._end()
            self._process = None
        if process.is_ready:  # else the next one would not start either, and the next request gets the error
            with contextlib.suppress(RendererError):
                self.start()


class Rendering:
    """A request being rendered. `traits` are those of its template.

    It restarts once, in a fresh process, if its process ends through no fault of the template.
    """

    def __init__(self, renderer: Renderer, opening: bytes) -> None:
        self._renderer = renderer
        self._opening = opening
        self._tries = 2
        self.opening = ""  # the end of the last prompt if it is missing in later turns
        self._open: tuple[_Process, Opened] | None = None
        self.traits = self._tried(lambda: self._begun()[1].traits)

    def text(self, start: int = 0) -> str:
        """Return the prompt of the conversation from message `start` on.

        Raises TemplateError, TemplateLimitError, NotSupportedError if the template has no place for the
        prompt, RequestError for malformed messages, and RendererError.
        """
        rendered = self._tried(
            lambda: self._renderer.reply(self._begun()[0], encoded(RenderFrom(start)), Rendered)
        )
        self.opening = rendered.opening
        return rendered.text

    def text_before_last(self) -> str:
        """Return the prompt without the last message and the beginning of the answer. Raises as `text`."""
        request = encoded(RenderFrom(whole=False))
        return self._tried(lambda: self._renderer.reply(self._begun()[0], request, Rendered)).text

    def close(self) -> None:
        """End the request."""
        if self._open is not None:
            self._open[0].say(Close())

    def _begun(self) -> tuple[_Process, Opened]:
        """Return the request's process and its reply about the template."""
        if self._open is None:
            self._open = self._renderer.open(self._opening)
        return self._open

    def _tried(self, ask: Callable[[], Answer]) -> Answer:
        """Return what `ask` returns, asked again if the process ends and there is a try left."""
        while True:
            try:
                return ask()
            except _EndedError as error:
                self._open = None
                self._tries -= 1
                if self._tries <= 0:
                    raise RendererError(str(error)) from None


class _EndedError(RendererError):
    """The end of the process through no fault of the request."""


class _Process:
    """A renderer process and the connection to it."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self._process = process
        self._connection = connection
        self.is_ready = False

    @classmethod
    def start(cls) -> _Process:
        """Start a process. Raises RendererError."""
        try:
            process, connection = confined.start(
                Path(__file__).with_name("__main__.py"), ("jinja2", "markupsafe", "msgspec")
            )
        except OSError as error:
            raise RendererError(
                f"the renderer of chat templates cannot be started with {sys.executable!r}: {error}"
            ) from error
        return cls(process, connection)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._connection.close()

    def say(self, message: ToRenderer) -> None:
        """Send a message without a reply. A failure shows with the next `ask`."""
        with contextlib.suppress(OSError):
            self._connection.sendall(encoded(message))

    def ask(self, message: bytes) -> FromRenderer:
        """Return the reply to `message`. If the process ends, raise what that means for the request."""
        try:
            if not self.is_ready:
                self._connection.settimeout(START_PATIENCE_S)
                self.is_ready = isinstance(self._receive(), RendererReady)
            self._connection.settimeout(jinja.PATIENCE_S)
            self._connection.sendall(message)
            return self._receive()
        except TimeoutError:
            raise self._too_slow() from None
        except (OSError, EOFError):
            raise self._death() from None
        except (ValueError, msgspec.DecodeError) as error:
            raise RendererError(f"the renderer of chat templates broke its protocol: {error}") from error

    def _receive(self) -> FromRenderer:
        received = frame(self._connection.recv, MAX_REPLY_BYTES)
        if received is None:
            raise EOFError
        return _decoder.decode(received)

    def _too_slow(self) -> PunaError:
        if not self.is_ready:
            return RendererError(
                f"the renderer of chat templates did not start within {START_PATIENCE_S:g} s: "
                "the machine is too busy"
            )
        if psutil.Process(self._process.pid).status() == psutil.STATUS_STOPPED:
            return _EndedError("the renderer of chat templates was stopped by a signal; try again")
        return RendererError(  # a template that used up its processor time would have been ended
            f"the chat template was not rendered within {jinja.PATIENCE_S:g} s: the machine is too busy; "
            "try again"
        )

    def _death(self) -> PunaError:
        """Return the error that the end of the process means for its request."""
        try:
            status = self._process.wait(jinja.PATIENCE_S)
        except subprocess.TimeoutExpired:
            return RendererError("the renderer of chat templates closed its connection")
        if status < 0 and status not in (*OUT_OF_TIME, *OUT_OF_MEMORY, *_OWN_FAULTS):
            return _EndedError(
                f"the renderer of chat templates was ended by signal {-status}, sent by someone, or by the "
                "system for lack of memory; try again"
            )
        if not self.is_ready:
            return RendererError(
                f"the renderer of chat templates could not start (exit status {status}); "
                "its output is in the log, or on the terminal"
            )
        if status == OVERGROWN:
            return _EndedError("the renderer of chat templates has ended")
        if status in OUT_OF_MEMORY:
            return jinja.too_large()
        if status in OUT_OF_TIME:
            return jinja.too_slow()
        if status < 0:
            return jinja.crashed(-status)
        return RendererError(f"the renderer of chat templates has ended with exit status {status}")
