"""Routes of the server's own API: `/metrics`, `/openapi.json`, `/docs` and `/api/debug/cache`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any, Final

import msgspec
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from puna import __version__
from puna.errors import RequestError, RunnerError
from puna.server.fleet.resident import ResidentModel
from puna.server.fleet.status import families, look
from puna.server.http.bodies import NOTHING, ApiRoute, Body, route
from puna.server.http.replies import HTML, LLAMA_SERVER_PATHS, SSE, TEXT, error_writer, json_reply
from puna.server.jobs.service import Service
from puna.server.keys import needed_scope

_STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; color: #222 }
code, pre { font: 14px/1.4 ui-monospace, monospace }
summary { cursor: pointer; padding: .3rem 0 }
details details { margin-left: 1rem }
table { border-collapse: collapse; margin: .5rem 0 }
td, th { border: 1px solid #ccc; padding: .2rem .6rem; text-align: left; vertical-align: top }
.method { display: inline-block; min-width: 5rem; font-weight: bold }
@media (prefers-color-scheme: dark) { body { background: #181818; color: #ddd } a { color: #8bf } }
"""

#: Lets a browser only show the page.
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(document: Mapping[str, Any]) -> str:
    """Return the page that shows an OpenAPI `document`."""
    schemas = document["components"]["schemas"]
    groups: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            groups.setdefault(operation["tags"][0], []).append(_operation_section(path, method, operation))
    body = "".join(f"<h2>{escape(name)}</h2>{''.join(each)}" for name, each in groups.items())
    types = "".join(_schema(name, schema) for name, schema in sorted(schemas.items()))
    info = document["info"]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(info["title"])}: API</title>'
        f"<style>{_STYLE}</style><h1>{escape(info['title'])} {escape(info['version'])}</h1>"
        f'<p>{escape(info["description"])} For programs: <a href="/openapi.json">/openapi.json</a>.</p>'
        f"{body}<h2>Types</h2>{types}</html>"
    )


def _operation_section(path: str, method: str, operation: Mapping[str, Any]) -> str:
    parts = [f"<p>{escape(operation['description'])}</p>"]
    if operation["parameters"]:
        rows = "".join(
            f"<tr><td><code>{escape(each['name'])}</code><td>{each['in']}" for each in operation["parameters"]
        )
        parts.append(f"<table><tr><th>parameter<th>in{rows}</table>")
    if body := operation.get("requestBody"):
        (content,) = body["content"].values()
        parts.append("<p>Body: " + _type(content["schema"]) + "</p>")
    given = operation["responses"]["200"].get("content", {})
    replies = "; ".join(
        f"<code>{escape(kind)}</code>: {_type(each['schema'])}" for kind, each in given.items()
    )
    parts.append(f"<p>Reply: {replies or 'empty'}</p>")
    error = operation["responses"]["default"]["content"]["application/json"]["example"]
    parts.append(f"<p>Errors: <code>{escape(json.dumps(error))}</code></p>")
    return (
        f"<details><summary><span class=method>{method.upper()}</span> <code>{escape(path)}</code> "
        f"{escape(operation['summary'])}</summary>{''.join(parts)}</details>"
    )


def _schema(name: str, schema: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(field)}</code><td>{_type(kind)}<td>{_default(kind)}"
        for field, kind in schema.get("properties", {}).items()
    )
    text = escape(schema.get("description", "")).replace("`", "")
    table = f"<table><tr><th>field<th>type<th>default{rows}</table>"
    title = f"<summary><code>{escape(name)}</code></summary>"
    return f'<details id="{escape(name)}">{title}<p>{text}</p>{table}</details>'


def _type(schema: Mapping[str, Any]) -> str:
    """Return a type in a few words, with links to named types."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "allOf" in schema:
        return " and ".join(
            f"a file <code>{escape(name)}</code>" if part == _FILE else _type(part)
            for each in schema["allOf"]
            for name, part in each.get("properties", {"": each}).items()
        )
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(escape(json.dumps(each)) for each in schema["enum"])
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_type(schema.get('items') or {})}"
    return escape(kind if isinstance(kind, str) else " or ".join(kind))


def _default(schema: Mapping[str, Any]) -> str:
    return f"<code>{escape(json.dumps(schema['default']))}</code>" if "default" in schema else ""


_REFS: Final = "#/components/schemas/"
_WORDS: Final = {"type": "string"}
_ANY_OBJECT: Final = {"type": "object"}
_FILE: Final = {"type": "string", "format": "binary"}


def document(routes: Iterable[BaseRoute]) -> dict[str, Any]:
    """Return the description of `routes` in OpenAPI 3.1."""
    api = [route for route in routes if isinstance(route, ApiRoute)]
    bodies, components = _requests([route.takes for route in api if route.takes is not None])
    gives = [one for route in api for one in (route.gives, route.events) if one is not None]
    schemas, more = msgspec.json.schema_components(gives, ref_template=_REFS + "{name}")
    replies = dict(zip(gives, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for one in api:
        for method in sorted(one.methods or ()):
            operation = _operation(one, method, bodies, replies)
            path = paths.setdefault(one.path_format, {})
            other = path.get(method.lower())
            path[method.lower()] = _either(other, operation) if other else operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Puna",
            "version": __version__,
            "description": "The APIs of Ollama, OpenAI, Anthropic, llama.cpp and vLLM, with what Puna adds.",
        },
        "paths": paths,
        "components": {
            "schemas": components | more,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _requests(kinds: list[type[Body]]) -> tuple[dict[type[Body], Any], dict[str, Any]]:
    """Return a reference to each type of request, and the types they refer to."""
    inputs = [(kind, "validation") for kind in dict.fromkeys(kinds)]
    refs, definitions = models_json_schema(inputs, ref_template=_REFS + "{model}")  # type: ignore[arg-type]
    components = {name: _plain(schema) for name, schema in definitions["$defs"].items()}
    return {kind: schema for (kind, _), schema in refs.items()}, components  # type: ignore[misc]


def _plain(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return `schema` without the titles that pydantic derives from names."""
    fields = {
        name: {key: value for key, value in field.items() if key != "title"}
        for name, field in schema["properties"].items()
    }
    return {**schema, "properties": fields}


def _operation(
    route: ApiRoute, method: str, bodies: Mapping[type[Body], Any], replies: Mapping[Any, Any]
) -> dict[str, Any]:
    scope = needed_scope(method, route.path)
    key = f" Needs a key with the scope `{scope}` if the server requires keys." if scope else ""
    error = error_writer(route.path)(RequestError("what was wrong, where, and what to do"))
    operation: dict[str, Any] = {
        "summary": route.description.split("\n")[0],
        "description": (route.description + key).strip(),
        "operationId": _id(method, route.path),
        "tags": [_tag(route.path)],
        "parameters": [
            *(_parameter(name, "path") for name in route.param_convertors),
            *(_parameter(name, "query") for name in route.query),
            *([_parameter(route.header, "header")] if route.header else []),
        ],
        "responses": {
            "200": {"description": "The result", **_content(route, method, replies)},
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
        kind = "application/json"
        if route.file:
            kind = "multipart/form-data"
            file = {"type": "object", "properties": {route.file: _FILE}, "required": [route.file]}
            schema = {"allOf": [schema, file]}
        operation["requestBody"] = {"required": True, "content": {kind: {"schema": schema}}}
    return operation


def _either(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Merge two GETs of one path, between which a header chooses: the parameters and replies of both."""
    schemas = [each["responses"]["200"]["content"]["application/json"]["schema"] for each in (one, other)]
    ok = {
        "description": "The result",
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
    if path.startswith("/api/puna/"):
        return "Page"
    if path in LLAMA_SERVER_PATHS:
        return "llama.cpp and vLLM"
    ours = path.startswith("/api/cluster") or not (path.startswith("/api/") or path == "/")
    return "Server" if ours else "Ollama"


def _caches(backend: Service) -> list[Route]:
    async def cache(request: Request) -> Response:
        """Show the contents of the caches of one loaded model, or of all."""
        # This neither loads models nor keeps them any longer.
        entries = backend.fleet.loaded()
        wanted = request.query_params.get("model", "")
        if wanted:
            path = str(backend.find(wanted).runnable_path())
            entries = [entry for entry in entries if entry.path == path]
        looks = await asyncio.gather(*map(_look, entries))
        models = [look for look in looks if look is not None]
        if wanted and not models:
            raise RequestError(f"model '{wanted}' is not in memory; ask it something first")
        return json_reply({"models": models})

    return [route("/api/debug/cache", cache, "GET", query=("model",))]


async def _look(entry: ResidentModel) -> dict[str, Any] | None:
    """Return the contents of a model's caches; None if its runner is gone or ends meanwhile."""
    if entry.runner is None:
        return None
    try:
        return {"name": entry.model.name, "caches": await entry.runner.contents()}
    except RunnerError:
        return None


def _metrics(backend: Service) -> list[Route]:
    async def metrics(request: Request) -> Response:
        """Show the state of the server for Prometheus."""
        fleet = backend.fleet
        now = families(await look(fleet.loaded()), fleet.waiting())
        page, content_type = backend.metrics.page(now, request.headers.get("accept", ""))
        return Response(page, headers={"content-type": content_type})

    return [route("/metrics", metrics, "GET", content_type=TEXT)]


def _description(backend: Service) -> list[Route]:
    async def describe(request: Request) -> Response:
        """Describe this API in OpenAPI."""
        return json_reply(document(request.app.routes))

    async def docs(request: Request) -> Response:
        """Show this API as a web page."""
        headers = {"content-type": HTML, "content-security-policy": POLICY}
        return Response(page(document(request.app.routes)), headers=headers)

    return [
        route("/openapi.json", describe, "GET"),
        route("/docs", docs, "GET", content_type=HTML),
    ]


def routes(backend: Service) -> list[Route]:
    return [*_caches(backend), *_metrics(backend), *_description(backend)]
