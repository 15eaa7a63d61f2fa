"""What is wrong with a JSON schema, in words that name the keyword and where it stands.

The library that compiles schemas says what it cannot do, but not always where; and a schema that refers to
itself without end it takes, to find out while answering that nothing can follow. Places are JSON pointers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from puna.errors import RequestError, shown

#: Formats of strings that are kept to. Any other says nothing about validity, as JSON Schema has it.
FORMATS: Final = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)

#: Keywords that say what is valid and have no counterpart in a grammar.
UNSUPPORTED: Final = frozenset(
    (
        *("not", "if", "then", "else", "uniqueItems", "contains", "minContains", "maxContains"),
        *("dependentRequired", "dependentSchemas", "dependencies", "propertyNames"),
        *("unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef"),
    )
)

_MAPS = ("properties", "patternProperties")
_LISTS = ("prefixItems", "anyOf", "oneOf", "allOf")
_COMBINING = ("allOf", "anyOf", "oneOf", "$ref")
_VALUES = ("const", "enum", "default", "examples")
_SINGLE = ("additionalProperties", "additionalItems", "items")

#: Looks at subschemas when searching for endless ones; a larger schema is left to its own fate.
_MOST_LOOKS = 200_000


@dataclass(eq=False)
class _Node:
    """A schema that another one, or the root, uses. `parts` are its subschemas by keyword."""

    schema: Mapping[str, Any]
    place: str
    parts: dict[str, list[tuple[str, _Node]]] = field(default_factory=dict)  # keyword: (name, node)
    users: list[_Node] = field(default_factory=list)
    finite: bool = False


@dataclass(frozen=True)
class CheckedSchema:
    """A schema to be compiled, and its regular expressions with the places where they stand."""

    schema: Any
    patterns: list[tuple[str, str]]


def checked_schema(schema: Any) -> CheckedSchema:
    """`schema` as it is to be compiled: narrower than written, so that what it accepts is what was meant.

    An object has no properties but those of the schema, unless that says so, and formats of strings that are
    not kept to are left out. Raises `RequestError` for unsupported keywords, references to nothing,
    and what no finite value satisfies.
    """
    nodes = _nodes(schema)
    for node in nodes:
        for keyword in UNSUPPORTED & node.schema.keys():
            raise RequestError(f'format: the keyword "{keyword}" at {node.place} is not supported')
    if nodes and not _is_finite(nodes):
        endless = next((node for node in nodes if not node.finite and "$ref" in node.schema), None)
        reason = f": {endless.place}/$ref leads to itself without end" if endless else ""
        raise RequestError(f"format: no value satisfies the schema{reason}")
    return CheckedSchema(
        _narrowed(schema, _closed(nodes)), [found for node in nodes for found in _patterns(node)]
    )


def _nodes(root: Any) -> list[_Node]:
    """The schema and all it uses, each once. Raises `RequestError`."""
    found: dict[int, _Node] = {}
    order: list[_Node] = []
    anchors: dict[str, Any] | None = None

    def visit(schema: Any, place: str) -> _Node | None:
        """The node of `schema`; None for a boolean, which has nothing to look at."""
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
            place = f"{node.place}/{keyword}" + (f"/{_escaped(name)}" if name else "")
            part = visit(schema, place)
            if part is not None:
                part.users.append(node)
            node.parts.setdefault(keyword, []).append((name, part or _boolean(schema, place)))
        if "$ref" in node.schema:
            if anchors is None:
                anchors = _anchors(root)
            target = _resolved(node.schema["$ref"], root, anchors, node.place)
            part = visit(target, str(node.schema["$ref"]))
            if part is not None:
                part.users.append(node)
            node.parts["$ref"] = [("", part or _boolean(target, node.place))]
    return order


def _boolean(schema: bool, place: str) -> _Node:
    return _Node({}, place, finite=schema)


def _subschemas(node: _Node) -> Iterator[tuple[str, str, Any]]:
    """The keyword, the name or number under it, and the schema there."""
    for keyword in _MAPS:
        value = node.schema.get(keyword)
        if value is None:
            continue
        if not isinstance(value, Mapping):
            raise RequestError(f"format: {node.place}/{keyword} must be an object, not {shown(value)}")
        for name, schema in value.items():
            yield keyword, name, schema
    for keyword in (*_LISTS, *_SINGLE):
        value = node.schema.get(keyword)
        if value is None:
            continue
        if isinstance(value, list):
            for number, schema in enumerate(value):
                yield keyword, str(number), schema
        elif keyword in _LISTS:
            raise RequestError(f"format: {node.place}/{keyword} must be an array, not {shown(value)}")
        else:
            yield keyword, "", value


def _patterns(node: _Node) -> Iterator[tuple[str, str]]:
    if isinstance(pattern := node.schema.get("pattern"), str):
        yield pattern, f"{node.place}/pattern"
    for name, _ in node.parts.get("patternProperties", ()):
        yield name, f"{node.place}/patternProperties"


# --- references --------------------------------------------------------------------------------------


def _anchors(root: Any) -> dict[str, Any]:
    """Schemas by the references to them that are no pointers: `#anchor`, and `$id`s."""
    found: dict[str, Any] = {}
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            for keyword, before in (("$anchor", "#"), ("$id", ""), ("id", "")):
                if isinstance(name := value.get(keyword), str):
                    found[before + name] = value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return found


def _resolved(reference: Any, root: Any, anchors: Mapping[str, Any], place: str) -> Any:
    """The schema a reference means. Raises `RequestError`."""
    where = f"format: {place}/$ref"
    if not isinstance(reference, str):
        raise RequestError(f"{where} must be a string, not {shown(reference)}")
    if reference in anchors:
        return anchors[reference]
    document, _, fragment = reference.partition("#")
    base = anchors.get(document) if document else root
    if base is None:
        raise RequestError(f"{where} ({shown(reference)}) is in another document, which is not read")
    value = base
    for step in unquote(fragment).split("/")[1:] if fragment.startswith("/") else [fragment] * bool(fragment):
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            raise RequestError(f"{where} points to {shown(reference)}, which the schema does not have")
    return value


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


# --- finite values -----------------------------------------------------------------------------------


def _is_finite(nodes: list[_Node]) -> bool:
    """Whether some finite value may satisfy the first of `nodes`; sets `finite` of all that are certain.

    It is the least fixed point: nothing is, until what it needs is.
    """
    waiting = nodes[::-1]  # parts come after those that use them
    looks = 0
    for node in waiting:  # which grows
        looks += 1 + len(node.parts)
        if looks > _MOST_LOOKS:
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


# --- what is meant -----------------------------------------------------------------------------------


def _closed(nodes: list[_Node]) -> set[int]:
    """Ids of the schemas that list all properties: those that are not put together with others."""
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
    }


def _narrowed(schema: Any, closed: set[int]) -> Any:
    """A copy of `schema` without formats that are not kept to, those `closed` without other properties."""
    if isinstance(schema, list):
        return [_narrowed(item, closed) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {
        key: value if key in _VALUES else _narrowed(value, closed)
        for key, value in schema.items()
        if key != "format" or not isinstance(value, str) or value in FORMATS
    }
    return kept | {"additionalProperties": False} if id(schema) in closed else kept
