"""`GET /openapi.json`: all routes, described by the declarations they are served with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from pydantic.json_schema import models_json_schema
from starlette.routing import BaseRoute

from puna import __version__
from puna.errors import RequestError
from puna.server.http.bodies import Body
from puna.server.http.replies import SSE, error_writer
from puna.server.http.routing import NOTHING, ApiRoute
from puna.server.keys.check import needed_scope

_REFS: Final = "#/components/schemas/"
_WORDS: Final = {"type": "string"}
_ANY_OBJECT: Final = {"type": "object"}


def document(routes: Iterable[BaseRoute]) -> dict[str, Any]:
    """The description of `routes` in the words of OpenAPI 3.1."""
    api = [route for route in routes if isinstance(route, ApiRoute)]
    bodies, components = _requests([route.takes for route in api if route.takes is not None])
    gives = [one for route in api for one in (route.gives, route.events) if one is not None]
    schemas, more = msgspec.json.schema_components(gives, ref_template=_REFS + "{name}")
    replies = dict(zip(gives, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in api:
        for method in sorted(route.methods or ()):
            operation = _operation(route, method, bodies, replies)
            path = paths.setdefault(route.path_format, {})
            other = path.get(method.lower())
            path[method.lower()] = _either(other, operation) if other else operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Puna",
            "version": __version__,
            "description": "The APIs of Ollama, OpenAI and Anthropic, with what Puna adds.",
        },
        "paths": paths,
        "components": {
            "schemas": components | more,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _requests(kinds: list[type[Body]]) -> tuple[dict[type[Body], Any], dict[str, Any]]:
    """A reference to each type of request, and what they refer to."""
    inputs = [(kind, "validation") for kind in dict.fromkeys(kinds)]
    refs, definitions = models_json_schema(inputs, ref_template=_REFS + "{model}")  # type: ignore[arg-type]
    components = {name: _plain(schema) for name, schema in definitions["$defs"].items()}
    return {kind: schema for (kind, _), schema in refs.items()}, components  # type: ignore[misc]


def _plain(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Without the titles that pydantic makes of names; null is for every field the same as nothing."""
    fields = {
        name: {key: value for key, value in field.items() if key != "title"}
        for name, field in schema["properties"].items()
    }
    return {**schema, "properties": fields}


def _operation(
    route: ApiRoute, method: str, bodies: Mapping[type[Body], Any], replies: Mapping[Any, Any]
) -> dict[str, Any]:
    scope = needed_scope(method, route.path)
    key = f" Needs a key for `{scope}` where the server asks for keys." if scope else ""
    error = error_writer(route.path)(RequestError("what was wrong, where, and what to do"))
    operation: dict[str, Any] = {
        "summary": route.says.split("\n")[0],
        "description": (route.says + key).strip(),
        "operationId": _id(method, route.path),
        "tags": [_tag(route.path)],
        "parameters": [
            *(_parameter(name, "path") for name in route.param_convertors),
            *(_parameter(name, "query") for name in route.query),
            *([_parameter(route.header, "header")] if route.header else []),
        ],
        "responses": {
            "200": {"description": "What was asked for", **_content(route, method, replies)},
            "default": {
                "description": "An error",
                "content": {"application/json": {"schema": _ANY_OBJECT, "example": error}},
            },
        },
    }
    if scope:
        operation["security"] = [{}, {"key": []}]
    if route.takes is not None:
        schema = bodies[route.takes]
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _either(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Merge two GETs of one path of which a header chooses: the parameters and replies of both."""
    schemas = [each["responses"]["200"]["content"]["application/json"]["schema"] for each in (one, other)]
    ok = {
        "description": "What was asked for",
        "content": {"application/json": {"schema": {"anyOf": schemas}}},
    }
    parameters = {(each["name"], each["in"]): each for each in [*one["parameters"], *other["parameters"]]}
    return {
        **other,
        "parameters": list(parameters.values()),
        "responses": {**other["responses"], "200": ok},
    }


def _content(route: ApiRoute, method: str, replies: Mapping[Any, Any]) -> dict[str, Any]:
    if method == "HEAD" or route.content_types == (NOTHING,):
        return {}
    content = {}
    for kind in (each.split(";")[0] for each in route.content_types):
        given = route.events if kind == SSE and route.events is not None else route.gives
        plain = _WORDS if kind.startswith("text/") else _ANY_OBJECT
        content[kind] = {"schema": replies[given] if given is not None else plain}
    return {"content": content}


def _parameter(name: str, place: str) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": _WORDS}


def _id(method: str, path: str) -> str:
    words = path.replace("{", "").replace("}", "").strip("/").replace("/", "_") or "root"
    return f"{method.lower()}_{words}"


def _tag(path: str) -> str:
    if path.startswith("/v1/messages"):
        return "Anthropic"
    if path.startswith("/v1/"):
        return "OpenAI"
    return "Ollama" if path.startswith("/api/") or path == "/" else "Server"
