"""Requests: routes, and bodies with their limits, read into wire types as Go's decoder would."""

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
from puna.errors import BodyTooLargeError, PunaError, RequestError, shown
from puna.gojson import JsonGauge
from puna.options import MAX_ADAPTERS, Options
from puna.server.http.connections import STREAMED
from puna.server.http.replies import JSON, error_reply
from puna.unknown import unknown_and_ignored

#: Characters: a registry's name, a namespace, a model and a tag have at most 600.
LONGEST_NAME: Final = 1000

MAX_MESSAGES: Final = 16_384

#: Texts to embed.
MAX_INPUTS: Final = 8192

#: Documents an answer may rest on.
MAX_DOCUMENTS: Final = 4096

#: Files and licences of a model to be created.
MAX_FILES: Final = 1024

T = TypeVar("T")
K = TypeVar("K")

#: The name of a model.
Name = Annotated[str, Field(max_length=LONGEST_NAME)]

#: Only the first wrong item of a list is looked for.
Messages = Annotated[list[T], Field(max_length=MAX_MESSAGES, fail_fast=True)]
Adapters = Annotated[list[T], Field(max_length=MAX_ADAPTERS, fail_fast=True)]
Files = Annotated[dict[K, T], Field(max_length=MAX_FILES)]
Licences = Annotated[list[str], Field(max_length=MAX_FILES, fail_fast=True)]
Many = Annotated[list[T], Field(fail_fast=True)]
Documents = Annotated[list[dict[str, Any]], Field(max_length=MAX_DOCUMENTS, fail_fast=True)]


class BodyLimitMiddleware:
    """Answers 413 to a body of more than `max_bytes`, and 400 to JSON that is out of proportion.

    What a Content-Length announces is refused at once, what comes in chunks as soon as it is too much.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(STREAMED):
            await self._app(scope, receive, send)
            return
        gauge = JsonGauge()
        came = 0

        async def measured() -> Message:
            nonlocal came
            message = await receive()
            body = message.get("body", b"")
            came += len(body)
            self._check(came)
            try:
                gauge.feed(body)
            except ValueError as error:
                raise RequestError(f"the request body: {error}") from error
            return message

        try:
            self._check(_announced(scope))
            await self._app(scope, measured, send)
        except PunaError as error:
            await (await error_reply(Request(scope), error))(scope, receive, send)

    def _check(self, size: int) -> None:
        if size > self._max_bytes:
            raise BodyTooLargeError(
                f"the request body is larger than {self._max_bytes / 2**20:g} MB (PUNA_MAX_BODY_MB)"
            )


def _announced(scope: Scope) -> int:
    """The body's length by its header; 0 without."""
    text = Headers(scope=scope).get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


class Body(BaseModel):
    """Base of all request bodies and their parts.

    `ignored` has a sentence for each field of a body, not of its parts, that there is not.
    """

    # Each is built when the first request needs it: together they take a fifth of a server's start.
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
        """Fields as they are spelled, by their names in lower case."""
        spelled = (field.alias or name for name, field in cls.model_fields.items())
        return {name.lower(): name for name in spelled}

    @classmethod
    def _ignores(cls, value: Mapping[str, Any]) -> list[str]:
        """Nothing is said of what is null, false or empty, which asks for nothing."""
        names = cls._names()
        asking = [key for key, item in value.items() if item or type(item) in (int, float)]
        unknown = [key for key in asking if key.lower() not in names]
        nested = [f"options.{name}" for name in Options.__struct_fields__] if "options" in names else []
        return unknown_and_ignored("field", unknown, [*names.values(), *nested])


B = TypeVar("B", bound=Body)

#: Values of Content-Encoding that mean other bytes; some clients name a character set there.
_COMPRESSIONS = frozenset({"br", "compress", "deflate", "gzip", "x-gzip", "zstd"})


async def read(request: Request, kind: type[B]) -> B:
    """The body of `request` as `kind`. Raises RequestError naming what is wrong and where."""
    if (encoding := request.headers.get("content-encoding", "").strip().lower()) in _COMPRESSIONS:
        raise RequestError(f"the request body is compressed ({encoding}); send it as it is")
    return parse(await request.body(), kind)


def parse(data: bytes, kind: type[B]) -> B:
    value = parse_json(data)
    if not isinstance(value, dict):
        raise RequestError(f"the request body must be a JSON object, not {_described(value)}")
    try:
        body = kind.model_validate(value)
    except ValidationError as error:
        raise RequestError(_explained(error)) from error
    body._ignored = kind._ignores(value)
    return body


def parse_json(data: bytes) -> Any:
    """The first JSON value in `data`; what follows it is ignored, `null` is an empty object."""
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
    """`value` with keys as `names` (lower case -> spelling) spells them, unknown and null ones dropped."""
    if not isinstance(value, dict):
        return value
    return {
        names[key.lower()]: item
        for key, item in value.items()
        if item is not None and isinstance(key, str) and key.lower() in names
    }


def _explained(error: ValidationError) -> str:
    errors = error.errors(include_url=False)
    # A field of several kinds has an error for each kind; that it is too long is the one that helps.
    first = next((one for one in errors if one["type"].endswith("too_long")), errors[0])
    path = [
        part for part in first["loc"] if not (isinstance(part, str) and "[" in part)
    ]  # `list[str]`: a kind
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
    value = _described(first["input"]) if first["type"].endswith("_type") else shown(first["input"])
    return f'field "{where}": {what}, not {value}'


_KINDS = {bool: "a boolean", int: "a number", str: "a string", list: "a list", dict: "an object"}


def _described(value: Any) -> str:
    return "null" if value is None else _KINDS.get(type(value), shown(value))


Endpoint = Callable[[Request], Awaitable[ASGIApp]]

#: A reply of raw bytes, or of none.
NOTHING: Final = ""


class ApiRoute(Route):
    """A route as `/openapi.json` describes it; the docstring of its endpoint says what it does.

    `takes` is the type its body is read as. `gives` is the type of its reply where that is declared, and
    `events` that of each item of a stream, if it is another; `content_types` are those it answers with;
    `query` are the parameters of its query. A route with a `header` answers only requests that have it.
    """

    takes: type[Body] | None = None
    gives: Any = None
    events: Any = None
    content_types: tuple[str, ...] = (JSON,)
    query: tuple[str, ...] = ()
    header: str = ""
    says: str = ""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if self.header and self.header not in Headers(scope=scope):
            return Match.NONE, {}
        return super().matches(scope)


def route(
    path: str,
    endpoint: Endpoint,
    *methods: str,
    gives: Any = None,
    content_type: str = JSON,
    query: tuple[str, ...] = (),
    header: str = "",
) -> ApiRoute:
    """A route for `methods` alone: Starlette by itself adds HEAD wherever there is GET."""
    made = ApiRoute(path, endpoint, methods=methods)
    made.methods = set(methods)
    made.gives = gives
    made.content_types = (content_type,)
    made.query = query
    made.header = header
    made.says = endpoint.__doc__ or ""
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
) -> ApiRoute:
    """A route whose endpoint gets the request's body as `takes`; it may stream in the type `streams`."""

    async def answer(request: Request) -> ASGIApp:
        return await endpoint(await read(request, takes))

    made = route(path, answer, method, gives=gives, content_type=content_type)
    made.takes = takes
    made.events = events
    made.says = endpoint.__doc__ or ""
    if streams:
        made.content_types = (content_type, streams)
    return made
