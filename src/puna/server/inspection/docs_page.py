"""`/openapi.json` as a page for people, made here, without scripts and without anything from afar."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any, Final

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

#: What a browser may do with the page: show it.
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(document: Mapping[str, Any]) -> str:
    """The page of an OpenAPI `document`."""
    schemas = document["components"]["schemas"]
    groups: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            groups.setdefault(operation["tags"][0], []).append(_operation(path, method, operation))
    body = "".join(f"<h2>{escape(name)}</h2>{''.join(each)}" for name, each in groups.items())
    types = "".join(_schema(name, schema) for name, schema in sorted(schemas.items()))
    info = document["info"]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(info["title"])}: API</title>'
        f"<style>{_STYLE}</style><h1>{escape(info['title'])} {escape(info['version'])}</h1>"
        f'<p>{escape(info["description"])} For programs: <a href="/openapi.json">/openapi.json</a>.</p>'
        f"{body}<h2>Types</h2>{types}</html>"
    )


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> str:
    parts = [f"<p>{escape(operation['description'])}</p>"]
    if operation["parameters"]:
        rows = "".join(
            f"<tr><td><code>{escape(each['name'])}</code><td>{each['in']}" for each in operation["parameters"]
        )
        parts.append(f"<table><tr><th>parameter<th>in{rows}</table>")
    if body := operation.get("requestBody"):
        parts.append("<p>Body: " + _type(body["content"]["application/json"]["schema"]) + "</p>")
    content = operation["responses"]["200"].get("content", {})
    replies = "; ".join(
        f"<code>{escape(kind)}</code>: {_type(each['schema'])}" for kind, each in content.items()
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
    """A type in a few words, with links to those that have names."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(escape(json.dumps(each)) for each in schema["enum"])
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return escape(kind if isinstance(kind, str) else " or ".join(kind))


def _default(schema: Mapping[str, Any]) -> str:
    return f"<code>{escape(json.dumps(schema['default']))}</code>" if "default" in schema else ""
