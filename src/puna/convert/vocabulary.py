"""Which kind of vocabulary a checkpoint has, and that as metadata."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from puna.convert.checkpoint import Checkpoint
from puna.convert.config import Config
from puna.convert.family import Family
from puna.convert.sentence_pieces import FILES, pieces, unigrams
from puna.convert.special import chat_templates, special_tokens
from puna.convert.tokens import Tokens, byte_pairs, merges_of, model_of, ranked_pieces, word_pieces
from puna.convert.world import WORLD, world_tokens
from puna.errors import ConversionError, shown
from puna.tokenizer.patterns import BY_NAME
from puna.tokenizer.vocabulary import TokenType

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


def _tokens(checkpoint: Checkpoint, config: Config) -> Tokens:
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


def _merge_as_gemma4(checkpoint: Checkpoint, tokens: Tokens) -> None:
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
