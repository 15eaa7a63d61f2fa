"""The renderer process, which runs one request's template at a time and dies of excessive ones."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

import puna.chat.templates.jinja_chat  # noqa: F401  (now, and not within the first request's bounds)
from puna.chat.templates import jinja
from puna.chat.templates.choose import ChatTemplate
from puna.chat.templates.messages import Chat, ChatFormat, Insert, remaining
from puna.chat.templates.renderer.protocol import (
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
from puna.confined import bounds, encoded, end_out_of_memory, frame, settle
from puna.errors import PunaError, RendererError, TemplateError
from puna.system.memory import limited_bytes, resident_bytes

_CONNECTION: Final = 0  # the file descriptor

#: Formats kept parsed and compiled. A model has one; more only come with requests.
_KEPT_FORMATS: Final = 8
#: Growth of resident memory after which the process is replaced between two requests.
_MAX_GROWTH_BYTES: Final = 48 << 20

_decoder: msgspec.msgpack.Decoder[ToRenderer] = msgspec.msgpack.Decoder(ToRenderer)


def main() -> None:
    """Answer requests until the owner hangs up."""
    settle()
    with contextlib.suppress(ConnectionError):  # the owner is gone
        _serve()
    # Cleaning up after a huge or deeply nested request could take long or crash.
    os._exit(0)


def _serve() -> None:
    formats = _Formats()
    fresh = resident_bytes()
    request: _Request | None = None
    _send(RendererReady())
    while (received := frame(_read)) is not None:
        match _decoder.decode(received):
            case OpenTemplate() as opened:
                request = _Request(opened, formats)
                _send(request.traits())
            case RenderFrom(start=start, whole=whole):
                assert request is not None
                _send(request.rendered(start, whole=whole))
            case Close():
                request = None
                if resident_bytes() > fresh + _MAX_GROWTH_BYTES:
                    os._exit(OVERGROWN)


class _Request:
    """A request and the rest of its limits. Its messages are already in memory and not counted."""

    def __init__(self, opened: OpenTemplate, formats: _Formats) -> None:
        self._opened = opened
        self._formats = formats
        self._seconds = jinja.PROCESSOR_TIME_S
        self._output_bytes = jinja.OUTPUT_BYTES
        self._address_space = limited_bytes() + jinja.MEMORY_BYTES

    def traits(self) -> FromRenderer:
        return self._answer(lambda: Opened(self._form.traits))

    def rendered(self, start: int, *, whole: bool) -> FromRenderer:
        return self._answer(lambda: self._with_opening(self._render(start, whole=whole)))

    def _with_opening(self, text: str) -> Rendered:
        if not isinstance(self._opened.prompt, Chat):
            return Rendered(text)
        opening = self._form.opening(self._opened.think)
        return Rendered(text, opening if text.endswith(opening) else "")

    def _render(self, start: int, *, whole: bool) -> str:
        think = self._opened.think
        match self._opened.prompt:
            case Insert(before=before, after=after):
                text = self._form.render_insert(before, after, think=think)
            case Chat(messages=messages) as chat:
                kept = remaining(messages, start)
                text = self._form.render(
                    kept if whole else kept[:-1],
                    tools=chat.tools or None,
                    documents=chat.documents,
                    values=chat.values,
                    think=think,
                    add_generation_prompt=chat.opens_answer and whole,
                    system_in_place=chat.system_in_place,
                )
            case None:
                raise RendererError("there is nothing to render")
        # Templates can produce halves of surrogate pairs, which cannot be encoded.
        encoded = text.encode(errors="replace")
        self._output_bytes -= len(encoded)
        if self._output_bytes < 0:
            raise jinja.too_long()
        return encoded.decode()

    @property
    def _form(self) -> ChatFormat:
        return self._formats.of(self._opened.template)

    def _answer(self, work: Callable[[], FromRenderer]) -> FromRenderer:
        """Return the result of `work`, done within the limits, or its error.

        Out of time or memory the process ends, because its state could not be trusted afterwards.
        """
        try:
            with self._bounds():
                return work()
        except PunaError as error:
            return RendererFailure(error.kind, str(error))
        except MemoryError:
            end_out_of_memory()
        except RecursionError:
            return RendererFailure(TemplateError.__name__, "template error: nested too deeply")
        except Exception as error:  # a bug of ours, which must not fail other requests
            traceback.print_exc()
            reason = f"internal error in the renderer: {type(error).__name__}: {error}"
            return RendererFailure(RendererError.__name__, reason)

    @contextlib.contextmanager
    def _bounds(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            left = stack.enter_context(bounds(self._seconds, self._address_space))
            try:
                yield
            finally:
                stack.close()
                self._seconds = left()


class _Formats:
    """Cache of the formats used last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, ChatFormat] = OrderedDict()

    def of(self, template: ChatTemplate) -> ChatFormat:
        """Return the format of `template`. Raises TemplateError."""
        key = template.digest
        if key not in self._kept:
            self._kept[key] = template.format()
            if len(self._kept) > _KEPT_FORMATS:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]


def _read(size: int) -> bytes:
    return os.read(_CONNECTION, size)


def _send(message: FromRenderer) -> None:
    rest = memoryview(encoded(message))
    while rest:
        rest = rest[os.write(_CONNECTION, rest) :]
