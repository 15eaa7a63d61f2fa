"""Results of tool calls, as a model reads them: a text of limited length, and images."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from puna.mcp.limits import MAX_IMAGES, MAX_TEXT


@dataclass(frozen=True)
class ToolResult:
    """A tool's answer to a call. `failed`: the text is an error, which the model reads, too."""

    text: str
    images: Sequence[bytes] = ()  # image files
    failed: bool = False

    def read_by(self, sees: bool) -> ToolResult:
        """Return the result for a model; unless it `sees`, a text says which images were left out."""
        if sees or not self.images:
            return self
        left_out = f"[{len(self.images)} image(s) left out: the model cannot see]"
        return ToolResult("\n".join(filter(None, (self.text, left_out))), (), self.failed)


def error_result(text: str) -> ToolResult:
    """Return the result of a call that failed before or in its tool."""
    return ToolResult(f"error: {text}", failed=True)


def cut(text: str) -> str:
    """Return `text`, at most `MAX_TEXT` characters, with the number of those left out."""
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]}\n[{len(text) - MAX_TEXT} more characters left out]"


def result_of(content: Sequence[Any], structured: Any, failed: bool) -> ToolResult:
    """Convert the content blocks of an MCP result."""
    texts: list[str] = []
    images: list[bytes] = []
    for block in content:
        match block.type:
            case "text":
                texts.append(block.text)
            case "image":
                _add_image(block, texts, images)
            case "audio":
                texts.append(f"[audio left out: {block.mime_type}, {_size(block.data)}]")
            case "resource_link":
                texts.append(f"[resource {block.name}: {block.uri}]")
            case "resource" if (text := getattr(block.resource, "text", None)) is not None:
                texts.append(text)
            case "resource":
                texts.append(f"[resource left out: {block.resource.uri}, {_size(block.resource.blob)}]")
            case other:
                texts.append(f"[{other} left out]")
    if not content and structured is not None:
        texts.append(json.dumps(structured, ensure_ascii=False))
    return ToolResult(cut("\n".join(texts)), images, failed)


def _add_image(block: Any, texts: list[str], images: list[bytes]) -> None:
    if len(images) == MAX_IMAGES:
        texts.append(f"[image left out: there are more than {MAX_IMAGES}]")
        return
    try:
        images.append(base64.b64decode(block.data, validate=True))
    except (binascii.Error, ValueError):
        texts.append("[image left out: its data is not base64]")


def _size(data: str) -> str:
    return f"{len(data) * 3 // 4} bytes"
