"""A checkpoint's vocabulary as metadata: its kind, its special tokens, and its chat templates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from puna.convert.checkpoint import Checkpoint, added_tokens
from puna.convert.config import Config
from puna.convert.family import Family
from puna.convert.tokens import (
    FILES,
    WORLD,
    TokenTable,
    byte_pairs,
    merges_of,
    model_of,
    pieces,
    ranked_pieces,
    unigrams,
    word_pieces,
    world_tokens,
)
from puna.errors import ConversionError, shown
from puna.tokenizer.patterns import BY_NAME
from puna.tokenizer.vocabulary import TokenType

#: What files call them.
_KEYS: Final = {
    "bos": "bos_token_id", "eos": "eos_token_id", "unk": "unknown_token_id", "sep": "seperator_token_id",
    "pad": "padding_token_id", "cls": "cls_token_id", "mask": "mask_token_id",
}  # fmt: skip


def special_tokens(checkpoint: Checkpoint, config: Config, tokens: TokenTable) -> dict[str, Any]:
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


_PREFIX: Final = "tokenizer.ggml."
_NO_SCORE: Final = -1000.0
_VISIBLE: Final = (
    "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>",
    '<|"|>',
)  # fmt: skip


def vocabulary(checkpoint: Checkpoint, config: Config, family: Family) -> dict[str, Any]:
    """All keys of `tokenizer`. Raises ConversionError if there is no vocabulary that can be read."""
    tokens = _tokens(checkpoint, config)
    if tokens.model == "gpt2":
        tokens.pre = _pre_tokenizer(checkpoint, family)
    if tokens.model == "bert" or config.get("type_vocab_size"):
        tokens.more["token_type_count"] = config.get("type_vocab_size") or 1
    if tokens.model == "llama" and family.vocabulary == "gemma4":
        _merge_as_gemma4(checkpoint, tokens)
    elif tokens.model == "llama":
        space = checkpoint.json("tokenizer_config.json").get("add_prefix_space")
        if family.vocabulary == "gemma":
            tokens.more["add_space_prefix"] = False
        elif isinstance(space, bool):
            tokens.more["add_space_prefix"] = space
    found: dict[str, Any] = {
        "model": tokens.model, "pre": tokens.pre, "tokens": tokens.texts, "scores": tokens.scores,
        "token_type": tokens.types, "merges": tokens.merges, **tokens.more,
        **({} if tokens.model == "rwkv" else special_tokens(checkpoint, config, tokens)),
    }  # fmt: skip
    keys = {_PREFIX + key: value for key, value in found.items() if value is not None}
    return keys | {f"tokenizer.{key}": text for key, text in chat_templates(checkpoint).items()}


def _tokens(checkpoint: Checkpoint, config: Config) -> TokenTable:
    if (world := checkpoint.text(WORLD)) is not None:
        return world_tokens(world, config)
    for name in FILES:
        if (path := checkpoint.folder / name).is_file():
            return pieces(checkpoint, config, path)
    given = checkpoint.json("tokenizer.json")
    model = given.get("model")
    if not isinstance(model, dict):
        raise ConversionError(f"{checkpoint.folder.name} has neither tokenizer.model nor tokenizer.json")
    kind = model.get("type") or ("BPE" if "merges" in model else "WordPiece")
    match kind:
        case "BPE" if model.get("byte_fallback") and not any(_steps(given, "ByteLevel")):
            return ranked_pieces(checkpoint, config)
        case "BPE" if any(_steps(given, "Whitespace")):
            raise ConversionError("tokenizer.json: BPE of words between white space is not supported")
        case "BPE":
            return byte_pairs(checkpoint, config)
        case "WordPiece":
            return word_pieces(checkpoint, config)
        case "Unigram":
            return unigrams(checkpoint, config)
    raise ConversionError(f"tokenizer.json: a vocabulary of type {shown(kind)} is not supported")


def _merge_as_gemma4(checkpoint: Checkpoint, tokens: TokenTable) -> None:
    """Say merges instead of scores; what marks channels and tools is text that answers are read by."""
    tokens.model, tokens.merges = "gemma4", merges_of(model_of(checkpoint, "BPE"))
    tokens.scores = [_NO_SCORE] * len(tokens.texts)
    tokens.more |= {"add_space_prefix": False, "add_bos_token": True}
    for id, text in enumerate(tokens.texts):
        if text in _VISIBLE:
            tokens.types[id] = int(TokenType.USER_DEFINED)


def _steps(given: dict[str, Any], kind: str) -> Iterator[dict[str, Any]]:
    """The steps of this kind that cut texts before merges."""
    step = given.get("pre_tokenizer")
    steps = step.get("pretokenizers") or [step] if isinstance(step, dict) else []
    return (each for each in steps if isinstance(each, dict) and each.get("type") == kind)


def _pre_tokenizer(checkpoint: Checkpoint, family: Family) -> str:
    """The name of what cuts texts as `tokenizer.json` does: the family's, if it does, or the first.

    It is recognised by its expressions. One that is not known is the family's, or the default.
    """
    given = checkpoint.json("tokenizer.json")
    cuts = [each.get("pattern", {}).get("Regex") for each in _steps(given, "Split")]
    if any(_steps(given, "Digits")):
        cuts.append(r"\p{N}")
    if any(step.get("use_regex", True) for step in _steps(given, "ByteLevel")):
        cuts.append(BY_NAME["gpt-2"].steps[0])
    wanted = tuple(cut for cut in cuts if isinstance(cut, str))
    merged = bool((given.get("model") or {}).get("ignore_merges"))
    same = [name for name, pre in BY_NAME.items() if wanted and pre.steps == wanted]
    if family.pre in same:
        return family.pre
    exactly = [name for name in same if BY_NAME[name].ignore_merges == merged]
    return next(iter([*exactly, *same]), family.pre or "default")
