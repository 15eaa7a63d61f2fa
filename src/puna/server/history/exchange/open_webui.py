"""Open WebUI's exports: chats with a tree of messages, whose thoughts and calls are blocks in the text."""

from __future__ import annotations

import base64
import binascii
import html
import re
from typing import Any, Final

import msgspec

from puna.server.history.chats import StoredCall
from puna.server.history.exchange.markdown import fenced
from puna.server.history.exchange.trees import (
    ROLES,
    ReadChat,
    ReadFile,
    ReadMessage,
    absent,
    keep,
    last_model,
    latest,
    parents_first,
    tags_of,
    text_of,
    time_s,
    title_of,
)

_BLOCK: Final = '<details type="'
_BLOCK_END: Final = "</details>"
_ATTRIBUTE: Final = re.compile(r'(\w{1,20})="([^"]*+)"')
_MEDIA_TYPE: Final = re.compile(r"[a-z]{1,20}/[\w.+-]{1,80}", re.ASCII)


class _Message(msgspec.Struct):
    role: str
    parentId: str | None = None  # noqa: N815
    content: Any = ""
    timestamp: Any = None
    model: Any = None
    files: Any = None
    error: Any = None


class _History(msgspec.Struct):
    messages: dict[str, _Message]
    currentId: str | None = None  # noqa: N815


class _Inner(msgspec.Struct):
    history: _History
    title: Any = None
    models: Any = None
    params: Any = None
    system: Any = None
    tags: Any = None
    timestamp: Any = None


class _Meta(msgspec.Struct):
    tags: Any = None


class _Chat(msgspec.Struct):
    chat: _Inner
    title: Any = None
    created_at: Any = None
    updated_at: Any = None
    pinned: Any = None
    meta: _Meta | None = None


_decoder = msgspec.json.Decoder(_Chat)
_inner_decoder = msgspec.json.Decoder(_Inner)


def read_chat(text: bytes | memoryview) -> ReadChat:
    """Return a chat of an export. Raises msgspec.DecodeError."""
    return _chat(_decoder.decode(text))


def read_inner_chat(text: bytes | memoryview) -> ReadChat:
    """Return a chat of an old export, which has nothing around it. Raises msgspec.DecodeError."""
    return _chat(_Chat(_inner_decoder.decode(text)))


def _chat(chat: _Chat) -> ReadChat:
    inner, history = chat.chat, chat.chat.history
    kept = {id: each for id, each in history.messages.items() if each.role in ROLES}
    order = parents_first({id: each.parentId for id, each in kept.items()})
    places = {id: place for place, id in enumerate(order)}
    contents: dict[str, bytes] = {}
    messages = [_message(kept[id], places, contents) for id in order]
    leaf = places.get(history.currentId or "", len(messages) - 1 if messages else None)
    created = time_s(chat.created_at) or time_s(inner.timestamp)
    models = [text_of(each) for each in inner.models] if isinstance(inner.models, list) else []
    return ReadChat(
        title=title_of(chat.title) or title_of(inner.title),
        created=created,
        updated=time_s(chat.updated_at) or latest(each.created for each in messages) or created,
        messages=messages,
        leaf=leaf,
        pinned=chat.pinned is True,
        tags=tags_of(chat.meta.tags if chat.meta is not None else inner.tags),
        model=last_model(messages) or next(iter(models), ""),
        settings={"system": system} if (system := _system(inner)) else {},
        contents=contents,
    )


def _system(chat: _Inner) -> str:
    return text_of(_object(chat.params).get("system")) or text_of(chat.system)


def _message(message: _Message, places: dict[str, int], contents: dict[str, bytes]) -> ReadMessage:
    content, thinking, calls = text_of(message.content), "", list[StoredCall]()
    role = ROLES[message.role]
    if role == "assistant":
        content, thinking, calls = _parted(content)
    files, missing = _files(message.files, contents)
    error = _error(message.error)
    return ReadMessage(
        parent=None if message.parentId is None else places.get(message.parentId),
        role=role,
        content="\n\n".join(filter(None, (content, *missing))),
        thinking=thinking,
        calls=calls,
        files=files,
        model=text_of(message.model) if role == "assistant" else "",
        error=error,
        state="failed" if error else "done",
        created=time_s(message.timestamp),
    )


def _parted(text: str) -> tuple[str, str, list[StoredCall]]:
    """Return the text of an answer without its blocks of thoughts and calls, the thoughts, and the calls."""
    shown, thoughts, calls = list[str](), list[str](), list[StoredCall]()
    at = 0
    while (begin := text.find(_BLOCK, at)) >= 0:
        head_end = text.find(">", begin)
        end = text.find(_BLOCK_END, head_end)
        if head_end < 0 or end < 0:
            break
        head = dict(_ATTRIBUTE.findall(text[begin:head_end]))
        shown.append(text[at:begin])
        if head["type"] == "reasoning":
            thoughts.append(_thought(text[head_end + 1 : end]))
        elif head["type"] == "tool_calls":
            name, arguments, result = (
                _unescaped(head.get(each, "")) for each in ("name", "arguments", "result")
            )
            calls.append(StoredCall(head.get("id", ""), name, arguments or "{}"))
            if result:
                shown.append(fenced(result, "json"))
        else:
            shown.append(text[begin : end + len(_BLOCK_END)])
        at = end + len(_BLOCK_END)
    shown.append(text[at:])
    return "".join(shown).strip() if at else text, "\n\n".join(filter(None, thoughts)), calls


def _thought(block: str) -> str:
    _, found, rest = block.partition("</summary>")
    lines = html.unescape((rest if found else block).strip()).split("\n")
    return "\n".join(line.removeprefix(">").removeprefix(" ") for line in lines)


def _unescaped(text: str) -> str:
    """Return the text of an attribute; values that were a text of JSON lose their quotation marks."""
    text = html.unescape(text)
    if text.startswith('"'):
        try:
            return text_of(msgspec.json.decode(text))
        except msgspec.DecodeError:
            pass
    return text


def _files(given: Any, contents: dict[str, bytes]) -> tuple[list[ReadFile], list[str]]:
    """Return the files whose contents there are, which go into `contents`, and notes of the others."""
    found, missing = list[ReadFile](), list[str]()
    for each in given if isinstance(given, list) else ():
        if not isinstance(each, dict):
            continue
        name = title_of(each.get("name")) or "image"
        data = _object(_object(each.get("file")).get("data"))
        if (file := _data_url(text_of(each.get("url")))) is not None:
            found.append(ReadFile(keep(contents, file[1]), name, file[0]))
        elif text := text_of(data.get("content")):
            found.append(ReadFile(keep(contents, text.encode(errors="replace")), name, "text/plain"))
        else:
            missing.append(absent(name))
    return found, missing


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _data_url(url: str) -> tuple[str, bytes] | None:
    """Return the media type and the content of a file that stands in an address; None for another."""
    head, comma, data = url.partition(",")
    kind, _, encoding = head.removeprefix("data:").partition(";")
    if not comma or not head.startswith("data:") or not encoding.endswith("base64"):
        return None
    try:
        content = base64.b64decode(data)
    except (binascii.Error, ValueError):
        return None
    return kind if _MEDIA_TYPE.fullmatch(kind) else "application/octet-stream", content


def _error(given: Any) -> str | None:
    if isinstance(given, dict):
        given = given.get("content")
    if isinstance(given, str):
        return given[:2000] or None
    return "the answer failed" if given else None
