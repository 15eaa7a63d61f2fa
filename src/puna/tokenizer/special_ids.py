"""The tokens that start and end a text, and those that stop generation (spec B7).

The file's own keys take precedence. For files with incomplete metadata, tokens are also recognised by their
spelling, as in llama.cpp; spellings that occur in ordinary text only count if the file marks the token as
special.
"""

from __future__ import annotations

from dataclasses import dataclass

from puna.architectures import ARCHITECTURES, UNKNOWN
from puna.errors import TokenizerError
from puna.gguf import GGUFFile, NumberArray
from puna.tokenizer.vocabulary import PREFIX, TokenType, Vocabulary, flag, token_id

#: Ends of turns, texts or tool calls, spelled unlike any ordinary text.
_END_SPELLINGS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<|file_sep|>",
)

#: Spellings that may occur in ordinary text (HTML, brackets), so the file must mark them.
_END_SPELLINGS_IF_MARKED = (
    "</s>",
    "<eos>",
    "[EOS]",
    "[EOT]",
    "<turn|>",
    "<|tool_response>",
    "<|flush|>",
    "<|calls|>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    "<PAD>",
    "[PAD]",
    "<REPO>",
    "<reponame>",
)

_END_KEYS = (
    "eos_token_id",
    "eot_token_id",
    "eom_token_id",
    "fim_pad_token_id",
    "fim_rep_token_id",
    "fim_sep_token_id",
)


#: Spellings of the tokens around the parts of a text with a gap, by the end of their key as in llama.cpp.
_GAP_SPELLINGS = {
    "pre": (
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<｜fim▁begin｜>",
    ),
    "suf": (
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<｜fim▁hole｜>",
    ),
    "mid": (
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<｜fim▁end｜>",
    ),
    "rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "sep": ("<|file_sep|>",),
}

#: Former names of the first three keys.
_FORMER_GAP_KEYS = {"pre": "prefix_token_id", "suf": "suffix_token_id", "mid": "middle_token_id"}


@dataclass(frozen=True)
class GapIds:
    """The tokens before the parts of a text with a gap: its `prefix`, its `suffix`, the `middle` to fill in.

    Models trained on repositories also have tokens before the name of the `repository` and of each `file`.
    """

    prefix: int
    suffix: int
    middle: int
    repository: int | None = None
    file: int | None = None


@dataclass(frozen=True)
class SpecialIds:
    """The special ids: before a text (`bos`), after it (`eos`), and those that stop generation (`ends`).

    `gap` is None for models that were not trained to fill in.
    """

    bos: int | None
    eos: int | None
    unknown: int | None
    ends: frozenset[int]
    add_bos: bool
    add_eos: bool
    gap: GapIds | None = None


def read_special_ids(file: GGUFFile, vocabulary: Vocabulary, model: str, bos_by_pre: bool) -> SpecialIds:
    """Return the special ids of `file`, whose `tokenizer.ggml.model` is `model`.

    `bos_by_pre` is the pre-tokenizer's default for `add_bos_token`, used for unknown architectures. Raises
    TokenizerError if a key names a token that does not exist.
    """
    size = len(vocabulary)
    bert = model == "bert"
    bos = token_id(file, "bos_token_id", size)
    eos = token_id(file, "eos_token_id", size)
    unknown = token_id(file, "unknown_token_id", size)
    if bert:
        bos = _first(token_id(file, "cls_token_id", size), bos, vocabulary.ids.get("[CLS]"))
        separator = _first(
            token_id(file, "separator_token_id", size), token_id(file, "seperator_token_id", size)
        )
        eos = _first(separator, eos, vocabulary.ids.get("[SEP]"))
        unknown = _first(unknown, vocabulary.ids.get("[UNK]"))
    elif model == "llama":
        bos = _first(bos, _marked(vocabulary, 1, TokenType.CONTROL))
        eos = _first(eos, _marked(vocabulary, 2, TokenType.CONTROL))
        unknown = _first(unknown, _marked(vocabulary, 0, TokenType.UNKNOWN))
    elif model == "plamo2":
        bos = _first(bos, _marked(vocabulary, 1, TokenType.CONTROL))
        eos = _first(eos, _marked(vocabulary, 2, TokenType.CONTROL))
    elif model == "t5":
        eos = _first(eos, _marked(vocabulary, 1, TokenType.CONTROL))
        unknown = _first(unknown, *vocabulary.of_type(TokenType.UNKNOWN))
    return SpecialIds(
        bos=bos,
        eos=eos,
        unknown=unknown,
        ends=_ends(file, vocabulary, eos),
        add_bos=bos is not None and adds_bos(file, model, bos_by_pre),
        add_eos=eos is not None and flag(file, "add_eos_token", model in ("bert", "t5")),
        gap=_gap(file, vocabulary),
    )


def adds_bos(file: GGUFFile, model: str, bos_by_pre: bool = False) -> bool:
    """Whether BOS, if it exists, is added before every text: as set in the file, or by the usual default."""
    default = ARCHITECTURES.get(file.architecture, UNKNOWN).add_bos
    if default is None:
        default = model in ("bert", "llama") or bos_by_pre
    return flag(file, "add_bos_token", default)


def _ends(file: GGUFFile, vocabulary: Vocabulary, eos: int | None) -> frozenset[int]:
    size = len(vocabulary)
    named = {token_id(file, key, size) for key in _END_KEYS} | {eos} | set(_end_list(file, size))
    spelled = {vocabulary.ids.get(text) for text in _END_SPELLINGS}
    marked = {vocabulary.ids.get(text) for text in _END_SPELLINGS_IF_MARKED}
    ends = {id for id in named | spelled if id is not None}
    ends |= {id for id in marked if id is not None and vocabulary.types[id] != TokenType.NORMAL}
    texts = {vocabulary.texts[id]: id for id in ends}
    # In the harmony format and in Solar's, <|end|> only closes one of several messages.
    if {"<|return|>", "<|call|>"} <= texts.keys() or {"<|flush|>", "<|calls|>"} <= texts.keys():
        ends.discard(texts.get("<|end|>", -1))
    # In Gemma 4, </s> is a piece of HTML.
    if "<|tool_response>" in texts and texts.get("</s>") != eos:
        ends.discard(texts.get("</s>", -1))
    return frozenset(ends)


def _gap(file: GGUFFile, vocabulary: Vocabulary) -> GapIds | None:
    """Return the tokens around a gap, named by the file or recognised by their spelling."""

    def find(part: str) -> int | None:
        keys = [f"fim_{part}_token_id", *([_FORMER_GAP_KEYS[part]] if part in _FORMER_GAP_KEYS else [])]
        named = (token_id(file, key, len(vocabulary)) for key in keys)
        return _first(*named, *(vocabulary.ids.get(text) for text in _GAP_SPELLINGS[part]))

    prefix, suffix, middle = find("pre"), find("suf"), find("mid")
    if prefix is None or suffix is None or middle is None:
        return None
    return GapIds(prefix, suffix, middle, repository=find("rep"), file=find("sep"))


def _end_list(file: GGUFFile, size: int) -> list[int]:
    value = file.get(PREFIX + "eos_token_ids")
    if value is None:
        return []
    ids = value.tolist() if isinstance(value, NumberArray) else [value]
    for id in ids:
        if not isinstance(id, int) or not 0 <= id < size:
            raise TokenizerError(
                f"{file.path.name}: key '{PREFIX}eos_token_ids' contains {id}, "
                f"but the last token of the vocabulary is {size - 1}"
            )
    return ids


def _first(*candidates: int | None) -> int | None:
    return next((id for id in candidates if id is not None), None)


def _marked(vocabulary: Vocabulary, id: int, kind: TokenType) -> int | None:
    return id if id < len(vocabulary) and vocabulary.types[id] == kind else None
