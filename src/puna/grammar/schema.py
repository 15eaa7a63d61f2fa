"""Checks of JSON schemas before they are compiled, with errors that name the keyword and its place.

The library that compiles schemas reports what it does not support, but not always where; and it accepts a
schema that references itself endlessly, only to find during the answer that nothing can follow. Places are
JSON pointers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from puna.errors import RequestError, shown
from puna.grammar.keywords import (
    MAX_PATTERNS,
    MAX_PROPERTIES,
    MAX_VALUES,
    check_depth,
    check_keywords,
    escaped,
    kept,
)
from puna.grammar.references import NAMED, VALUES, References, written

_MAPS = ("properties", "patternProperties")
_LISTS = ("prefixItems", "anyOf", "oneOf", "allOf")
_COMBINING = ("allOf", "anyOf", "oneOf", "$ref")
_SINGLE = ("additionalProperties", "additionalItems", "items")

#: Keywords that involve other schemas, or only name this one.
_OF_OTHERS = (*_MAPS, *_LISTS, *_SINGLE, "$ref", "$defs", "definitions", "$id", "$anchor")

#: Steps of the search for endless subschemas; a larger schema is not searched to the end.
_MAX_LOOKS = 200_000


@dataclass(eq=False)
class _Node:
    """The root schema or one that another uses. `parts` are its subschemas by keyword."""

    schema: Mapping[str, Any]
    place: str
    parts: dict[str, list[tuple[str, _Node]]] = field(default_factory=dict)  # keyword: (name, node)
    users: list[_Node] = field(default_factory=list)
    finite: bool = False


@dataclass(frozen=True)
class CheckedSchema:
    """A schema to compile, and its parts with their places."""

    schema: Any
    patterns: list[tuple[str, str]]
    nodes: list[_Node]

    def parts(self) -> Iterator[tuple[str, Any]]:
        """Yield parts that can be checked alone: the own keywords of each schema, and each `oneOf`."""
        for node in self.nodes:
            own = {key: value for key, value in node.schema.items() if key not in _OF_OTHERS}
            if "properties" in node.schema:
                own["properties"] = dict.fromkeys(node.schema["properties"], True)
            if isinstance(others := node.schema.get("additionalProperties"), bool):
                own["additionalProperties"] = others
            yield node.place, _narrowed(own, set())
        definitions = {key: self.schema[key] for key in ("$defs", "definitions") if key in self.schema}
        for node in self.nodes:
            if "oneOf" in node.schema:
                whole = _narrowed({"oneOf": node.schema["oneOf"]}, set())
                yield f"{node.place}/oneOf", definitions | whole


def checked_schema(schema: Any) -> CheckedSchema:
    """Return `schema` ready to compile, narrowed from what is written to what is meant.

    Objects get no properties beyond the schema's unless it allows them, and formats of strings that are not
    enforced are dropped. Raises `RequestError` for unsupported keywords, dangling references, schemas that no
    finite value satisfies, and excessive sizes.
    """
    check_depth(schema)
    nodes = _nodes(schema)
    for node in nodes:
        check_keywords(node.schema, node.place)
    _check_size(nodes)
    if nodes and not _is_finite(nodes):
        endless = next((node for node in nodes if not node.finite and "$ref" in node.schema), None)
        reason = f": {endless.place}/$ref leads to itself without end" if endless else ""
        raise RequestError(f"format: no value satisfies the schema{reason}")
    patterns = [found for node in nodes for found in _patterns(node)]
    if len(patterns) > MAX_PATTERNS:
        place = patterns[MAX_PATTERNS][1]
        raise RequestError(
            f"format: the pattern at {place} is one more than the {MAX_PATTERNS} that are read"
        )
    return CheckedSchema(_narrowed(schema, _closed(nodes)), patterns, nodes)


def _check_size(nodes: list[_Node]) -> None:
    for keyword, most, what in (
        ("properties", MAX_PROPERTIES, "properties"),
        ("required", MAX_PROPERTIES, "required names"),
        ("enum", MAX_VALUES, "values of enums"),
    ):
        total = 0
        for node in nodes:
            total += len(node.schema.get(keyword, ()))
            if total > most:
                raise RequestError(
                    f"format: up to {node.place}/{keyword} there are {total:,} {what} in the schema, "
                    f"and at most {most:,} are read"
                )


def _nodes(root: Any) -> list[_Node]:
    """Return the nodes of the schema and of all schemas it uses, each once. Raises `RequestError`."""
    found: dict[int, _Node] = {}
    order: list[_Node] = []
    references: References | None = None

    def visit(schema: Any, place: str) -> _Node | None:
        """Return the node of `schema`; None for a boolean, which has no parts."""
        if isinstance(schema, bool):
            return None
        if not isinstance(schema, Mapping):
            raise RequestError(f"format: {place}: a schema is an object or a boolean, not {shown(schema)}")
        node = found.get(id(schema))
        if node is None:
            node = found[id(schema)] = _Node(schema, place)
            order.append(node)
        return node

    visit(root, "#")
    for node in order:  # which grows
        for keyword, name, schema in _subschemas(node):
            place = f"{node.place}/{keyword}" + (f"/{escaped(name)}" if name is not None else "")
            part = visit(schema, place)
            if part is not None:
                part.users.append(node)
            node.parts.setdefault(keyword, []).append((name or "", part or _boolean(schema, place)))
        if "$ref" in node.schema:
            references = references or References(root)
            target = references.resolved(node.schema, node.place)
            part = visit(target, str(node.schema["$ref"]))
            if part is not None:
                part.users.append(node)
            node.parts["$ref"] = [("", part or _boolean(target, node.place))]
    return order


def _boolean(schema: bool, place: str) -> _Node:
    return _Node({}, place, finite=schema)


def _subschemas(node: _Node) -> Iterator[tuple[str, str | None, Any]]:
    """Yield each subschema with its keyword, and its name or number under that."""
    for keyword in _MAPS:
        if keyword not in node.schema:
            continue
        value = node.schema[keyword]
        if not isinstance(value, Mapping):
            raise RequestError(f"format: {node.place}/{keyword} must be an object, not {shown(value)}")
        for name, schema in value.items():
            yield keyword, name, schema
    for keyword in (*_LISTS, *_SINGLE):
        if keyword not in node.schema:
            continue
        value = node.schema[keyword]
        if isinstance(value, list):
            for number, schema in enumerate(value):
                yield keyword, str(number), schema
        elif keyword in _LISTS:
            raise RequestError(f"format: {node.place}/{keyword} must be an array, not {shown(value)}")
        else:
            yield keyword, None, value


def _patterns(node: _Node) -> Iterator[tuple[str, str]]:
    if isinstance(pattern := node.schema.get("pattern"), str):
        yield pattern, f"{node.place}/pattern"
    for name, _ in node.parts.get("patternProperties", ()):
        yield name, f"{node.place}/patternProperties"


def _is_finite(nodes: list[_Node]) -> bool:
    """Return whether some finite value may satisfy the first of `nodes`, setting `finite` on the way.

    This is the least fixed point: a node becomes finite once everything it needs is.
    """
    waiting = nodes[::-1]  # parts come after those that use them
    looks = 0
    for node in waiting:  # which grows
        looks += 1 + len(node.parts)
        if looks > _MAX_LOOKS:
            return True
        if not node.finite and _may_end(node):
            node.finite = True
            waiting += (user for user in node.users if not user.finite)
    return nodes[0].finite


def _may_end(node: _Node) -> bool:
    schema = node.schema
    if not all(part.finite for keyword in ("$ref", "allOf") for _, part in node.parts.get(keyword, ())):
        return False
    for keyword in ("anyOf", "oneOf"):
        if keyword in node.parts and not any(part.finite for _, part in node.parts[keyword]):
            return False
    if schema.get("type") == "object":
        required = schema.get("required")
        needed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
        return all(part.finite for name, part in node.parts.get("properties", ()) if name in needed)
    least = schema.get("minItems")
    if schema.get("type") == "array" and isinstance(least, int) and least > 0:
        prefix = node.parts.get("prefixItems", [])
        items = node.parts.get("items", []) if least > len(prefix) else []
        return all(part.finite for _, part in [*prefix[:least], *items])
    return True


def _closed(nodes: list[_Node]) -> set[int]:
    """Return the ids of the schemas that list all properties, as they are not combined with others."""
    combined: set[int] = set()
    waiting = []
    for node in nodes:
        ways = sum(keyword in node.schema for keyword in (*_COMBINING, "properties"))
        if "allOf" in node.schema or ways > 1:
            combined.add(id(node.schema))
            waiting.append(node)
    for node in waiting:  # which grows
        for keyword in _COMBINING:
            for _, part in node.parts.get(keyword, ()):
                if id(part.schema) not in combined:
                    combined.add(id(part.schema))
                    waiting.append(part)
    return {
        id(node.schema)
        for node in nodes
        if id(node.schema) not in combined
        and "properties" in node.schema
        and not node.schema.keys() & {"additionalProperties", "patternProperties"}
        and set(node.schema.get("required", ())) <= node.schema["properties"].keys()
    }


def _narrowed(schema: Any, closed: set[int], *, named: bool = False) -> Any:
    """Copy `schema` without ignored keywords, forbidding other properties in the `closed` schemas.

    If `named`, the keys are names of schemas, not keywords.
    """
    if isinstance(schema, list):
        return [_narrowed(item, closed) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    if named:
        return {name: _narrowed(value, closed) for name, value in schema.items()}
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if not kept(key, value):
            continue
        if key in VALUES:
            found[key] = value
        elif key == "$ref" and isinstance(value, str):
            found[key] = written(value)
        elif isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            found[key] = int(value)
        else:
            found[key] = _narrowed(value, closed, named=key in NAMED)
    return found | {"additionalProperties": False} if id(schema) in closed else found
