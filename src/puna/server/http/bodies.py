"""Routes, and request bodies: their limits, and reading them into wire types as Go's decoder would."""

from __future__ import annotations

import codecs
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from puna import gojson
from puna.audio.limits import audio_limits
from puna.errors import BodyTooLargeError, PunaError, RequestError, shown
from puna.gojson import JsonGauge
from puna.options import MAX_ADAPTERS, Options
from puna.server.http.connections import STREAMED
from puna.server.http.replies import JSON, error_reply
from puna.unknown import unknown_and_ignored

#: Maximum characters. The host, namespace, model and tag in a name have at most 600.
LONGEST_NAME: Final = 1000

MAX_MESSAGES: Final = 16_384

#: Maximum texts to embed.
MAX_INPUTS: Final = 8192

#: Maximum documents of a chat.
MAX_DOCUMENTS: Final = 4096

#: Maximum files, and maximum licences, of a model to create.
MAX_FILES: Final = 1024

TRANSCRIPTIONS: Final = "/v1/audio/transcriptions"
TRANSLATIONS: Final = "/v1/audio/translations"
#: Paths whose bodies are forms with an audio file.
RECORDINGS: Final = frozenset({TRANSCRIPTIONS, TRANSLATIONS})
#: Bytes of such a form besides its file.
_FORM_BYTES: Final = 2 << 20

#: Paths whose bodies are files, not JSON that is read in this process.
UPLOADS: Final = frozenset({"/api/puna/files", "/api/puna/import", *RECORDINGS})

T = TypeVar("T")
K = TypeVar("K")

#: The name of a model.
Name = Annotated[str, Field(max_length=LONGEST_NAME)]

#: With `fail_fast`, checking stops at the first wrong item.
Messages = Annotated[list[T], Field(max_length=MAX_MESSAGES, fail_fast=True)]
Adapters = Annotated[list[T], Field(max_length=MAX_ADAPTERS, fail_fast=True)]
Files = Annotated[dict[K, T], Field(max_length=MAX_FILES)]
Licences = Annotated[list[str], Field(max_length=MAX_FILES, fail_fast=True)]
Many = Annotated[list[T], Field(fail_fast=True)]
Documents = Annotated[list[dict[str, Any]], Field(max_length=MAX_DOCUMENTS, fail_fast=True)]


class BodyLimitMiddleware:
    """Refuses bodies of more than `max_bytes` with 413, and JSON beyond the limits of `JsonGauge` with 400.

    Forms with an audio file may be as long as such a file. A body that is too long by its Content-Length is
    refused at once, other bodies once the limit is passed.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(STREAMED):
            await self._app(scope, receive, send)
            return
        gauge = None if scope["path"] in UPLOADS else JsonGauge()
        most, setting = self._max_bytes, "PUNA_MAX_BODY_MB"
        if scope["path"] in RECORDINGS:
            most, setting = audio_limits().file_bytes + _FORM_BYTES, "PUNA_MAX_AUDIO_MB"
        received = 0

        def check(size: int) -> None:
            if size > most:
                raise BodyTooLargeError(f"the request body is larger than {most / 2**20:g} MB ({setting})")

        async def measured() -> Message:
            nonlocal received
            message = await receive()
            body = message.get("body", b"")
            received += len(body)
            check(received)
            try:
                if gauge is not None:
                    gauge.feed(body)
            except ValueError as error:
                raise RequestError(f"the request body: {error}") from error
            return message

        try:
            check(_content_length(scope))
            await self._app(scope, measured, send)
        except PunaError as error:
            await (await error_reply(Request(scope), error))(scope, receive, send)


def _content_length(scope: Scope) -> int:
    """Return the length in the Content-Length header; 0 if there is none."""
    text = Headers(scope=scope).get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


class Body(BaseModel):
    """Base of all request bodies and their parts.

    `ignored` has a sentence for each unknown field of a body, but not of its parts.
    """

    # Validators are built when first needed: building all takes a fifth of the server's startup.
    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=(), defer_build=True)
    _ignored: list[str] = PrivateAttr(default_factory=list)

    @property
    def ignored(self) -> list[str]:
        return self._ignored

    @model_validator(mode="before")
    @classmethod
    def _fold_keys(cls, value: Any) -> Any:
        return fold_keys(value, cls._names())

    @classmethod
    def _names(cls) -> dict[str, str]:
        """Return the spellings of all fields by their names in lower case."""
        spelled = (field.alias or name for name, field in cls.model_fields.items())
        return {name.lower(): name for name in spelled}

    @classmethod
    def _ignores(cls, value: Mapping[str, Any]) -> list[str]:
        """Return sentences about unknown fields, except null, false and empty ones, which request nothing."""
        names = cls._names()
        requesting = [key for key, item in value.items() if item or type(item) in (int, float)]
        unknown = [key for key in requesting if key.lower() not in names]
        if not unknown:
            return []
        nested = [f"options.{name}" for name in Options.__struct_fields__] if "options" in names else []
        return unknown_and_ignored("field", unknown, [*names.values(), *nested])


B = TypeVar("B", bound=Body)

#: Values of Content-Encoding that change the bytes; some clients put a character set there.
_COMPRESSIONS = frozenset({"br", "compress", "deflate", "gzip", "x-gzip", "zstd"})


async def read(request: Request, kind: type[B]) -> B:
    """Return the body of `request` as `kind`. Raises RequestError saying what is wrong and where."""
    if (encoding := request.headers.get("content-encoding", "").strip().lower()) in _COMPRESSIONS:
        raise RequestError(f"the request body is compressed ({encoding}); send it uncompressed")
    return parse(await request.body(), kind)


def parse(data: bytes, kind: type[B]) -> B:
    value = parse_json(data)
    if not isinstance(value, dict):
        raise RequestError(f"the request body must be a JSON object, not {_type_name(value)}")
    return body_of(value, kind)


def body_of(value: Mapping[str, Any], kind: type[B]) -> B:
    """Return a decoded body as `kind`. Raises RequestError naming what is wrong and where."""
    try:
        body = kind.model_validate(value)
    except ValidationError as error:
        raise RequestError(_explanation(error)) from error
    body._ignored = kind._ignores(value)
    return body


def parse_json(data: bytes) -> Any:
    """Return the first JSON value in `data`, an empty object for `null`; the rest is ignored."""
    if not data.strip():
        raise RequestError("missing request body")
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        raise RequestError(
            f"the request body is not valid UTF-8: byte {data[error.start]:#04x} at {error.start}"
        ) from error
    try:
        value, _ = gojson.first_value(text)
    except ValueError as error:
        raise RequestError(f"the request body is not valid JSON: {error}") from error
    return {} if value is None else value


def fold_keys(value: Any, names: Mapping[str, str]) -> Any:
    """Return the known keys of `value` that are not null, spelled as in `names` (lower case -> spelling)."""
    if not isinstance(value, dict):
        return value
    return {
        names[key.lower()]: item
        for key, item in value.items()
        if item is not None and isinstance(key, str) and key.lower() in names
    }


def _explanation(error: ValidationError) -> str:
    errors = error.errors(include_url=False)
    # A field of several types has an error for each; if one says that it is too long, that is the cause.
    first = next((one for one in errors if one["type"].endswith("too_long")), errors[0])
    # Parts such as `list[str]` are types.
    path = [part for part in first["loc"] if not (isinstance(part, str) and "[" in part)]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
    what = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if first["type"] == "value_error":
        return what
    if first["type"].endswith("too_long"):
        unit = "characters" if first["type"] == "string_too_long" else "items"
        return f'field "{where}": more than {first["ctx"]["max_length"]:,} {unit}'
    if first["type"] == "missing":
        return f'field "{where}" is missing'
    if first["type"] in ("dict_type", "model_type"):
        what = "must be an object"
    value = _type_name(first["input"]) if first["type"].endswith("_type") else shown(first["input"])
    return f'field "{where}": {what}, not {value}'


_KINDS = {bool: "a boolean", int: "a number", str: "a string", list: "a list", dict: "an object"}


def _type_name(value: Any) -> str:
    return "null" if value is None else _KINDS.get(type(value), shown(value))


Endpoint = Callable[[Request], Awaitable[ASGIApp]]

#: The content type of replies with raw bytes, or without a body.
NOTHING: Final = ""


class ApiRoute(Route):
    """A route with its description for `/openapi.json`; `description` is the docstring of its endpoint.

    `takes` is the type of its body, a form if there is a `file`, the name of that field. `gives` is the type
    of its reply, if declared, and `events` the type of the items of a stream, if that differs.
    `content_types` are those of its replies, and `query` the names of its query parameters. A route with a
    `header` matches only requests that have it.
    """

    takes: type[Body] | None = None
    file: str = ""
    gives: Any = None
    events: Any = None
    content_types: tuple[str, ...] = (JSON,)
    query: tuple[str, ...] = ()
    header: str = ""
    description: str = ""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if self.header and self.header not in Headers(scope=scope):
            return Match.NONE, {}
        return super().matches(scope)


class BrowserRoute(Route):
    """A route for requests that ask for a page; others go on to the next route."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if "text/html" not in Headers(scope=scope).get("accept", ""):
            return Match.NONE, {}
        return super().matches(scope)


def route(
    path: str,
    endpoint: Endpoint,
    *methods: str,
    gives: Any = None,
    takes: type[Body] | None = None,
    events: Any = None,
    content_type: str = JSON,
    query: tuple[str, ...] = (),
    header: str = "",
) -> ApiRoute:
    """Return a route for exactly `methods`; Starlette alone would add HEAD to GET."""
    made = ApiRoute(path, endpoint, methods=methods)
    made.methods = set(methods)
    made.gives = gives
    made.takes = takes
    made.events = events
    made.content_types = (content_type,)
    made.query = query
    made.header = header
    made.description = endpoint.__doc__ or ""
    return made


def body_route(
    path: str,
    takes: type[B],
    endpoint: Callable[[B], Awaitable[ASGIApp]],
    *,
    method: str = "POST",
    gives: Any = None,
    events: Any = None,
    streams: str = "",
    content_type: str = JSON,
    query: tuple[str, ...] = (),
) -> ApiRoute:
    """Return a route whose endpoint gets the body as `takes`; `streams` is the type of its streams.

    Parameters of the `query` stand in for empty fields of the same name, which are texts.
    """

    async def answer(request: Request) -> ASGIApp:
        body = await read(request, takes)
        for name in query:
            if not getattr(body, name) and (given := request.query_params.get(name)):
                setattr(body, name, given)
        return await endpoint(body)

    made = route(
        path,
        answer,
        method,
        gives=gives,
        takes=takes,
        events=events,
        content_type=content_type,
        query=query,
    )
    made.description = endpoint.__doc__ or ""
    if streams:
        made.content_types = (content_type, streams)
    return made
