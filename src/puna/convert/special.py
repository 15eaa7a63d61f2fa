"""The special tokens of a checkpoint, what is put around texts, and its chat templates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from puna.convert.added import added_tokens
from puna.convert.checkpoint import Checkpoint
from puna.convert.config import Config
from puna.convert.tokens import Tokens

#: What files call them.
_KEYS: Final = {
    "bos": "bos_token_id", "eos": "eos_token_id", "unk": "unknown_token_id", "sep": "seperator_token_id",
    "pad": "padding_token_id", "cls": "cls_token_id", "mask": "mask_token_id",
}  # fmt: skip


def special_tokens(checkpoint: Checkpoint, config: Config, tokens: Tokens) -> dict[str, Any]:
    """Keys of `tokenizer.ggml`: ids of special tokens, and which are put around texts."""
    settings = dict(checkpoint.json("tokenizer_config.json"))
    around = _added_around(checkpoint, settings)
    ids = {text: id for id, (text, _) in added_tokens(checkpoint).items()}
    found: dict[str, Any] = {}
    for name, key in _KEYS.items():
        id = ids.get(_text(settings.get(f"{name}_token")) or "")
        if id is None:
            id = checkpoint.config.get(f"{name}_token_id")
            id = config.get(f"{name}_token_id") if id is None else id
        if type(id) is int and 0 <= id < len(tokens.texts):
            found[key] = id
        add = around.get(name, settings.get(f"add_{name}_token"))
        if isinstance(add, bool) and name in ("bos", "eos", "sep"):
            found[f"add_{name}_token"] = add
    ends = _ends(checkpoint, config, len(tokens.texts))
    if len(ends) > 1 or (ends and "eos_token_id" not in found):
        found["eos_token_ids"] = ends
        found.setdefault("eos_token_id", ends[0])
    return found


def _ends(checkpoint: Checkpoint, config: Config, size: int) -> list[int]:
    """All tokens that end an answer."""
    value = checkpoint.json("generation_config.json").get("eos_token_id")
    value = config.get("eos_token_id") if value is None else value
    ids = value if isinstance(value, list) else [value]
    return list(dict.fromkeys(id for id in ids if type(id) is int and 0 <= id < size))


def _added_around(checkpoint: Checkpoint, settings: dict[str, Any]) -> dict[str, bool]:
    """Which tokens `tokenizer.json` puts before and after a text; tokens it names are added to `settings`."""
    found: dict[str, bool] = {}
    tokenizer = checkpoint.json("tokenizer.json")
    for name, other in (("bos", "cls"), ("eos", "sep")) if tokenizer else ():
        if not settings.get(f"{name}_token") and settings.get(f"{other}_token"):
            settings[f"{name}_token"] = settings[f"{other}_token"]
    given = tokenizer.get("post_processor")
    if not isinstance(given, dict):
        return found
    for step in given.get("processors") or [given]:
        match step:
            case {"type": "ByteLevel"}:
                found.setdefault("bos", False)
                found.setdefault("eos", False)
            case {"type": "RobertaProcessing" | "BertProcessing", "cls": [first, *_], "sep": [last, *_]}:
                found |= {"bos": True, "eos": True, "sep": True}
                settings.setdefault("cls_token", first)
                settings.setdefault("sep_token", last)
            case {"type": "TemplateProcessing", "single": [_, _, *_] as single}:
                _read_template(single, step.get("pair") or [], settings, found)
            case _:
                pass
    return found


def _read_template(
    single: list[Any], pair: list[Any], settings: dict[str, Any], found: dict[str, bool]
) -> None:
    first, last = _special(single[0]), _special(single[-1])
    texts = {name: _text(settings.get(f"{name}_token")) for name in ("bos", "eos", "cls", "sep")}
    if first:
        for name in ("bos", "cls") if first not in (texts["bos"], texts["cls"]) else ():
            if not texts[name]:
                settings[f"{name}_token"] = texts[name] = first
        found["bos"] = first in (texts["bos"], texts["cls"])
    if last:
        settings["eos_token"] = texts["eos"] = last
        found["eos"] = True
    between = [_special(part) for part in pair]
    if first and between[:1] == [first]:
        between = between[1:]
    if last and between[-1:] == [last]:
        between = between[:-1]
    if len(between) > 2:  # what stands between two texts
        found["sep"] = any(text in (texts["sep"], texts["eos"]) and text for text in between[1:-1])


def _special(part: Any) -> str | None:
    match part:
        case {"SpecialToken": {"id": str(text)}}:
            return text
    return None


def _text(token: Any) -> str | None:
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def chat_templates(checkpoint: Checkpoint) -> dict[str, str]:
    """Keys of `tokenizer`: the template of chats, and named others."""
    given = checkpoint.json("tokenizer_config.json").get("chat_template")
    if given is None:
        given = checkpoint.text("chat_template.jinja") or checkpoint.json("chat_template.json").get(
            "chat_template"
        )
    if isinstance(given, str):
        return {"chat_template": given}
    found = {}
    for entry in given if isinstance(given, list) else ():
        match entry:
            case {"name": str(name), "template": str(text)}:
                name = re.sub(r"[^A-Za-z0-9]", "_", name)
                found["chat_template" if name == "default" else f"chat_template.{name}"] = text
    return found
