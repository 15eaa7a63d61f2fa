"""`puna show`: the details of a model, in sections."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_ARRAY_CHARACTERS = 10  # shown of an array before it is truncated
Rows = list[tuple[str, ...]]


def overview(shown: Mapping[str, Any], verbose: bool = False) -> str:
    """`shown`, a reply of `/api/show`, as sections of indented columns; empty sections are left out."""
    info: Mapping[str, Any] = shown.get("model_info") or {}
    sections: list[tuple[str, Rows]] = [
        ("Model", _model_rows(shown, info)),
        ("Capabilities", [(name,) for name in shown.get("capabilities") or ()]),
        ("Projector", _projector_rows(shown.get("projector_info") or {})),
        ("Adapters", [(each["name"], f"{each['scale']:g}") for each in shown.get("adapters") or ()]),
        ("Parameters", parameter_rows(shown.get("parameters") or "")),
    ]
    if verbose:
        sections.append(("Metadata", [(name, value_text(info[name])) for name in sorted(info)]))
        sections.append(("Tensors", [_tensor_row(tensor) for tensor in shown.get("tensors") or ()]))
    sections.append(("System", _first_lines(shown.get("system") or "")))
    sections.append(("License", _first_lines(shown.get("license") or "")))
    return "".join(_section(title, rows) for title, rows in sections if rows)


def parameter_rows(parameters: str) -> Rows:
    """The rows of `parameters`, a text with one `name value` per line."""
    rows: Rows = []
    for line in parameters.splitlines():
        name, _, value = line.strip().partition(" ")
        if name:
            rows.append((name, value.strip()))
    return rows


def value_text(value: Any) -> str:
    """A metadata value in short; arrays are truncated: `[1, 2, 3, 4, ...+96 more]`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if not isinstance(value, list):
        return "" if value is None else str(value).replace("\n", "\\n")
    text = "["
    for index, element in enumerate(value):
        if len(text) > _ARRAY_CHARACTERS:
            return f"{text} ...+{len(value) - index} more]"
        text += (", " if index else "") + value_text(element)
    return text + "]"


def _model_rows(shown: Mapping[str, Any], info: Mapping[str, Any]) -> Rows:
    details: Mapping[str, Any] = shown.get("details") or {}
    architecture = info.get("general.architecture") or details.get("family")
    rows = [
        ("architecture", architecture),
        ("parameters", details.get("parameter_size") or _count(info.get("general.parameter_count"))),
        ("context length", info.get(f"{architecture}.context_length")),
        ("embedding length", info.get(f"{architecture}.embedding_length")),
        ("quantization", details.get("quantization_level")),
        ("requires", shown.get("requires")),
        ("engine", shown.get("engine")),
        ("answer family", shown.get("answer_family")),
    ]
    return _filled(rows)


def _projector_rows(info: Mapping[str, Any]) -> Rows:
    architecture = info.get("general.architecture")
    rows = [
        ("architecture", architecture),
        ("parameters", _count(info.get("general.parameter_count"))),
        ("embedding length", info.get(f"{architecture}.vision.embedding_length")),
        ("dimensions", info.get(f"{architecture}.vision.projection_dim")),
    ]
    return _filled(rows)


def _filled(rows: Iterable[tuple[str, Any]]) -> Rows:
    return [(name, _number_text(value)) for name, value in rows if value]


def _number_text(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) else str(value)


def _count(parameters: int | float | None) -> str:
    """Number of parameters: `7.2B`, `134.52M`, `900K`."""
    if not parameters:
        return ""
    for factor, unit, digits in ((10**9, "B", 1), (10**6, "M", 2), (10**3, "K", 0)):
        if parameters >= factor:
            return f"{parameters / factor:.{digits}f}{unit}"
    return str(int(parameters))


def _tensor_row(tensor: Mapping[str, Any]) -> tuple[str, ...]:
    shape = " ".join(str(int(length)) for length in tensor.get("shape") or ())
    return (tensor["name"], str(tensor.get("type", "")), f"[{shape}]")


def _first_lines(text: str) -> Rows:
    """The first two non-blank lines, and `...` if there are more."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return [(line,) for line in (lines if len(lines) <= 2 else [*lines[:2], "..."])]


def _section(title: str, rows: Sequence[tuple[str, ...]]) -> str:
    columns = max(map(len, rows))
    widths = [max((len(row[i]) for row in rows if i < len(row)), default=0) for i in range(columns)]
    lines = ("    ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)) for row in rows)
    body = "\n".join(line.rstrip() for line in lines)
    return f"  {title}\n{textwrap.indent(body, '    ')}\n\n"
