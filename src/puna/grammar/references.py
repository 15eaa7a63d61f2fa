"""Resolution of references within a JSON schema: pointers, anchors and the `$id`s of parts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote, urljoin

from puna.errors import RequestError, shown

#: Keywords whose values are never schemas, whatever they contain.
VALUES: Final = ("const", "enum", "default", "examples")
#: Keywords whose values map names to schemas.
NAMED: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")

_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)


class References:
    """Resolver of the references in one schema."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._bases: dict[int, str] = {}  # of every schema, by its id()
        self._found: dict[str, Any] = {"": root}  # schemas by their addresses: of resources, and with anchors
        waiting = [(root, "")]
        while waiting:
            schema, base = waiting.pop()
            if not isinstance(schema, Mapping):
                continue
            for keyword in ("$id", "id"):
                if isinstance(name := schema.get(keyword), str) and not name.startswith("#"):
                    base = _joined(base, name.rstrip("#"))
                    self._found.setdefault(base, schema)
            self._bases[id(schema)] = base
            if isinstance(anchor := schema.get("$anchor"), str):
                self._found[f"{base}#{anchor}"] = schema
            waiting += [(part, base) for part in _parts(schema)]

    def resolved(self, schema: Mapping[str, Any], place: str) -> Any:
        """Return the target of the `$ref` of `schema`, found at `place`. Raises `RequestError`."""
        reference, where = schema["$ref"], f"format: {place}/$ref"
        if not isinstance(reference, str):
            raise RequestError(f"{where} must be a string, not {shown(reference)}")
        address = _joined(self._bases.get(id(schema), ""), reference)
        document, _, fragment = address.partition("#")
        if document not in self._found:
            raise RequestError(f"{where} ({shown(reference)}) is in another document, which is not read")
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            if f"{document}#{fragment}" not in self._found:
                raise RequestError(f"{where} points to {shown(reference)}, which the schema does not have")
            return self._found[f"{document}#{fragment}"]
        value = self._found[document]
        for step in fragment.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(value, Mapping) and step in value:
                value = value[step]
            elif isinstance(value, list) and _INDEX.fullmatch(step) and int(step) < len(value):
                value = value[int(step)]
            else:
                raise RequestError(f"{where} points to {shown(reference)}, which the schema does not have")
        return value


def written(reference: str) -> str:
    """Escape the characters of a reference that a URI cannot contain."""
    return quote(reference, safe="#/:?%&=~!$'()*+,;@[]-._")


def _joined(base: str, reference: str) -> str:
    if reference.startswith("#"):  # urljoin fails for URIs without paths, such as urn:
        return base.partition("#")[0] + reference
    return urljoin(base, reference)


def _parts(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the values that are, or contain, the schemas directly within a schema."""
    for keyword, value in schema.items():
        if keyword in VALUES:
            continue
        if isinstance(value, list):
            yield from value
        elif keyword in NAMED and isinstance(value, Mapping):
            yield from value.values()
        else:
            yield value
