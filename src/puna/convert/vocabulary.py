"""Conversion of a checkpoint's vocabulary to metadata: tokens, special tokens and chat templates."""

from __future__ import annotations

import ast
import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from puna.convert.checkpoint import PublishedFolder, added_tokens
from puna.convert.config import Config
from puna.convert.family import Family
from puna.errors import ConversionError, shown
from puna.tokenizer.patterns import BY_NAME
from puna.tokenizer.vocabulary import TokenType

#: The largest vocabularies have 260,000 tokens.
_MAX_TOKENS: Final = 1 << 21
_SPACE: Final = "\u2581"  # as spelled in SentencePiece's pieces
_CONTROL: Final = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
_BYTE: Final = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_ADDED_SCORE: Final = -1000.0
_UNUSED_SCORE: Final = -10000.0


@dataclass
class TokenTable:
    """`tokenizer.ggml.*`: `model`, and each token's text, type and (for models with scores) score, by id."""

    model: str
    texts: list[str]
    types: list[int]
    scores: list[float] | None = None
    merges: list[str] | None = None
    pre: str = "default"
    more: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def empty(cls, model: str, size: int, *, scored: bool = False) -> TokenTable:
        """Return a table of `size` unused tokens."""
        if not 0 < size <= _MAX_TOKENS:
            raise ConversionError(f"a vocabulary of {size} tokens is too large (at most {_MAX_TOKENS})")
        texts = [f"[PAD{i}]" for i in range(size)]
        return cls(model, texts, [TokenType.UNUSED] * size, [_UNUSED_SCORE] * size if scored else None)

    def put(self, id: int, text: str, kind: TokenType, score: float = _ADDED_SCORE) -> None:
        """Set token `id`; ignore an id outside the table."""
        if 0 <= id < len(self.texts):
            self.texts[id], self.types[id] = text, int(kind)
            if self.scores is not None:
                self.scores[id] = score

    def add(self, id: int, text: str, *, special: bool) -> None:
        """Set a token that was added to the tokenizer's own."""
        if special or looks_special(text):
            self.put(id, text, TokenType.CONTROL)
        else:
            self.put(id, text.replace(_SPACE, " "), TokenType.USER_DEFINED)


def looks_special(text: str) -> bool:
    """Whether a token's spelling makes it a control token, even if its tokenizer does not say so."""
    return (
        text in _CONTROL
        or (text.startswith("<|") and text.endswith("|>"))
        or (text.startswith("<｜") and text.endswith("｜>"))
        or (text.startswith("<unused") and text.endswith(">"))
    )


def size_of(checkpoint: PublishedFolder, config: Config, least: int) -> int:
    """Return the file's number of tokens, which is the embedding's number of rows."""
    embedding = next(
        (
            tensor.shape[0]
            for name, tensor in checkpoint.tensors.items()
            if name.endswith(
                ("embed_tokens.weight", "word_embeddings.weight", "wte.weight", "embeddings.weight")
            )
            and len(tensor.shape) == 2
            and "per_layer" not in name
            and "vision" not in name
        ),
        None,
    )
    # Llama 3.2 Vision has extra rows for tokens that are only read.
    read = [
        tensor.shape[0]
        for name, tensor in checkpoint.tensors.items()
        if name.endswith(("language_model.embed_tokens.weight", "language_model.model.embed_tokens.weight"))
    ]
    return max(int(config.get("vocab_size") or embedding or least), *read, 0)


def byte_pairs(checkpoint: PublishedFolder, config: Config) -> TokenTable:
    """Return the table of a byte-level BPE: of `tokenizer.json`, or of `vocab.json` and `merges.txt`."""
    model = model_of(checkpoint, "BPE")
    vocabulary = _vocabulary(model)
    added = added_tokens(checkpoint)
    tokens = TokenTable.empty(
        "gpt2", size_of(checkpoint, config, max([*vocabulary.values(), *added], default=0) + 1)
    )
    for text, id in vocabulary.items():
        tokens.put(id, text, TokenType.NORMAL)
    for id, (text, special) in added.items():
        tokens.add(id, text, special=special)
    tokens.merges = merges_of(model)
    return tokens


def ranked_pieces(checkpoint: PublishedFolder, config: Config) -> TokenTable:
    """Return SentencePiece's BPE from a `tokenizer.json`: pieces scored by the rank of their merge."""
    model = model_of(checkpoint, "BPE")
    vocabulary = _vocabulary(model)
    added = added_tokens(checkpoint)
    size = size_of(checkpoint, config, max([*vocabulary.values(), *added], default=0) + 1)
    tokens = TokenTable.empty("llama", size, scored=True)
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(merges_of(model)):
        ranks.setdefault(merge.replace(" ", ""), rank)
    unknown = model.get("unk_token")
    for text, id in vocabulary.items():
        kind = TokenType.BYTE if _BYTE.fullmatch(text) else TokenType.NORMAL
        kind = TokenType.UNKNOWN if text == unknown else kind
        tokens.put(id, text, kind, -float(ranks.get(text, len(ranks))))
    for id, (text, special) in added.items():
        if text != unknown:
            tokens.add(id, text, special=special)
    return tokens


def word_pieces(checkpoint: PublishedFolder, config: Config) -> TokenTable:
    """Return BERT's WordPiece: GGUF marks pieces that begin a word, not those that continue one."""
    model = model_of(checkpoint, "WordPiece")
    vocabulary = _vocabulary(model)
    added = added_tokens(checkpoint)
    size = size_of(checkpoint, config, max([*vocabulary.values(), *added], default=0) + 1)
    tokens = TokenTable.empty("bert", size)
    going_on = str(model.get("continuing_subword_prefix") or "##")
    for text, id in vocabulary.items():
        inside = text.startswith(going_on)
        tokens.put(id, text.removeprefix(going_on) if inside else _SPACE + text, TokenType.NORMAL)
    for id, (text, special) in added.items():
        tokens.add(id, text, special=special)
    normalizer = checkpoint.json("tokenizer.json").get("normalizer") or {}
    for ours in ("lowercase", "strip_accents"):
        if isinstance(normalizer.get(ours), bool):
            tokens.more[f"normalizer.{ours}"] = normalizer[ours]
    return tokens


def model_of(checkpoint: PublishedFolder, kind: str) -> dict[str, Any]:
    """Return the model of `tokenizer.json`, or of the two files of a BPE; it must be of this `kind`."""
    if kind == "BPE" and _is_in_two_files(checkpoint):
        first, *others = (checkpoint.text(_MERGES) or "").replace("\r", "").split("\n")
        lines = filter(None, others if first.startswith("#version") else [first, *others])
        return {"vocab": checkpoint.json(_VOCABULARY), "merges": [line.split(" ") for line in lines]}
    model = checkpoint.json("tokenizer.json").get("model")
    if not isinstance(model, dict) or model.get("type", kind) != kind:
        raise ConversionError(f"tokenizer.json has no vocabulary of type {kind}")
    return model


#: Files of a byte-level BPE whose folder has no `tokenizer.json`.
_VOCABULARY, _MERGES = "vocab.json", "merges.txt"
#: Pre-tokenizers of families whose published models all split texts alike.
_ALIKE: Final = ("qwen2",)


def _is_in_two_files(checkpoint: PublishedFolder) -> bool:
    names = "tokenizer.json", _VOCABULARY, _MERGES
    return [(checkpoint.folder / name).is_file() for name in names] == [False, True, True]


def _vocabulary(model: Mapping[str, Any]) -> dict[str, int]:
    found = model.get("vocab")
    if not isinstance(found, dict) or not all(
        type(id) is int and 0 <= id < _MAX_TOKENS for id in found.values()
    ):
        raise ConversionError("tokenizer.json or vocab.json: the vocabulary does not give each token an id")
    return found


def merges_of(model: Mapping[str, Any]) -> list[str]:
    """Return merges in GGUF's form: two texts separated by a space."""
    found = model.get("merges")
    if not isinstance(found, list):
        raise ConversionError("tokenizer.json: 'model.merges' is not a list")
    merges = []
    for merge in found:
        if isinstance(merge, str):
            merges.append(merge)
        elif isinstance(merge, list) and len(merge) == 2 and all(isinstance(part, str) for part in merge):
            merges.append(" ".join(part.replace(" ", chr(256 + ord(" "))) for part in merge))
        else:
            raise ConversionError(f"tokenizer.json or merges.txt: {shown(merge)} is not a merge")
    return merges


FILES: Final = ("tokenizer.model", "spiece.model")
_LARGEST: Final = 1 << 26  # bytes


def pieces(checkpoint: PublishedFolder, config: Config, path: Path) -> TokenTable:
    """Return the table of a BPE `tokenizer.model`."""
    processor = _processor(path)
    count = processor.GetPieceSize()
    tokens = TokenTable.empty("llama", size_of(checkpoint, config, count), scored=True)
    for id in range(count):
        tokens.put(id, processor.IdToPiece(id), _kind(processor, id), float(processor.GetScore(id)))
    for id, (text, special) in added_tokens(checkpoint).items():
        if id >= count or not processor.IsUnknown(id):
            tokens.add(id, text, special=special)
    return tokens


def _processor(path: Path) -> Any:
    from sentencepiece import SentencePieceProcessor

    if path.stat().st_size > _LARGEST:
        raise ConversionError(f"{path.name} has more than {_LARGEST >> 20} MiB")
    try:
        return SentencePieceProcessor(model_proto=path.read_bytes())
    except (OSError, RuntimeError, ValueError) as error:
        raise ConversionError(f"{path.name} cannot be read: {shown(str(error))}") from None


def _kind(processor: Any, id: int) -> TokenType:
    for asks, kind in (
        (processor.IsUnknown, TokenType.UNKNOWN),
        (processor.IsControl, TokenType.CONTROL),
        (processor.IsUnused, TokenType.UNUSED),
        (processor.IsByte, TokenType.BYTE),
    ):
        if asks(id):
            return kind
    return TokenType.NORMAL


def unigrams(checkpoint: PublishedFolder, config: Config) -> TokenTable:
    """Return the Unigram vocabulary of a `tokenizer.json` (T5, XLM-RoBERTa)."""
    model = model_of(checkpoint, "Unigram")
    given = model.get("vocab")
    if not isinstance(given, list) or not all(isinstance(entry, list) and len(entry) == 2 for entry in given):
        raise ConversionError("tokenizer.json: 'model.vocab' is not a list of texts and scores")
    tokens = TokenTable.empty("t5", size_of(checkpoint, config, len(given)), scored=True)
    unknown = model.get("unk_id")
    for id, (text, score) in enumerate(given):
        tokens.put(id, str(text), TokenType.UNKNOWN if id == unknown else TokenType.NORMAL, float(score))
    for id, (text, special) in added_tokens(checkpoint).items():
        if id != unknown:
            score = float(given[id][1]) if id < len(given) else 0.0
            tokens.put(id, text, TokenType.CONTROL if special else TokenType.USER_DEFINED, score)
    steps = checkpoint.json("tokenizer.json").get("normalizer") or {}
    settings = checkpoint.json("tokenizer_config.json")
    tokens.more["add_space_prefix"] = bool(settings.get("add_prefix_space", True))
    tokens.more["remove_extra_whitespaces"] = bool(settings.get("clean_up_tokenization_spaces", True))
    for step in steps.get("normalizers", [steps]) if isinstance(steps, dict) else ():
        if isinstance(step, dict) and isinstance(table := step.get("precompiled_charsmap"), str) and table:
            try:
                tokens.more["precompiled_charsmap"] = np.frombuffer(base64.b64decode(table), np.uint8)
            except binascii.Error as error:
                raise ConversionError(f"tokenizer.json: 'precompiled_charsmap': {error}") from None
    return tokens


#: RWKV's vocabulary file, which all its models share.
WORLD: Final = "rwkv_vocab_v20230424.txt"
_MAX_LINE: Final = 1 << 12  # a token of 128 bytes, all of them escaped


def world_tokens(text: str, config: Config) -> TokenTable:
    """Return the vocabulary in the file's `text`. Raises ConversionError naming an invalid line."""
    lines = text.removesuffix("\n").split("\n")
    tokens = TokenTable.empty("rwkv", int(config.get("vocab_size") or len(lines) + 1))
    tokens.put(0, "<s>", TokenType.CONTROL)
    for number, line in enumerate(lines, 1):
        id, token = _token(line, number)
        tokens.put(id, repr(token)[2:-1], TokenType.NORMAL)
        if token == b"\n\n":  # separates the turns of a conversation
            tokens.more["eot_token_id"] = id
    tokens.more |= {"bos_token_id": 0, "eos_token_id": 0}
    return tokens


def _token(line: str, number: int) -> tuple[int, bytes]:
    id, _, rest = line.partition(" ")
    literal, _, length = rest.rpartition(" ")
    try:
        found = ast.literal_eval(literal) if len(line) <= _MAX_LINE else None
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        found = None
    token = found.encode(errors="replace") if isinstance(found, str) else found
    if not isinstance(token, bytes) or not id.isdecimal() or length != str(len(token)) or len(id) > 9:
        raise ConversionError(f"{WORLD}: line {number} is {shown(line)}, not a token's id, text and length")
    return int(id), token


#: PLaMo's vocabulary file: each line is a list of a token's text, score and type, and more.
SCORED_LINES: Final = "tokenizer.jsonl"
_SCORED_KINDS: Final = {
    "UNKNOWN": TokenType.UNKNOWN, "CONTROL": TokenType.CONTROL, "BYTE": TokenType.BYTE,
}  # fmt: skip
#: The token of PLaMo that begins a turn, and so ends an answer.
_TURN: Final = "<|plamo:op|>"


def scored_lines(text: str, config: Config) -> TokenTable:
    """Return the vocabulary in the file's `text`. Raises ConversionError naming an invalid line."""
    lines = [line for line in text.split("\n") if line.strip()]
    tokens = TokenTable.empty("plamo2", int(config.get("vocab_size") or len(lines)), scored=True)
    for id, line in enumerate(lines):
        token, score, kind = _scored_line(line, id + 1)
        tokens.put(id, token, kind, score)
        if token == _TURN:
            tokens.more["eot_token_id"] = id
    tokens.more["add_space_prefix"] = False
    return tokens


def _scored_line(line: str, number: int) -> tuple[str, float, TokenType]:
    try:
        found = json.loads(line) if len(line) <= _MAX_LINE else None
    except (ValueError, RecursionError):
        found = None
    match found:
        case [str(token), int() | float() as score, str(kind), *_] if not isinstance(score, bool):
            special = token.startswith("<|plamo:") and token.endswith("|>")
            usual = TokenType.CONTROL if special else TokenType.NORMAL
            return token, float(score), _SCORED_KINDS.get(kind, usual)
    raise ConversionError(
        f"{SCORED_LINES}: line {number} is {shown(line)}, not a list of a token's text, score and type"
    )


#: Names of special tokens in GGUF.
_KEYS: Final = {
    "bos": "bos_token_id", "eos": "eos_token_id", "unk": "unknown_token_id", "sep": "seperator_token_id",
    "pad": "padding_token_id", "cls": "cls_token_id", "mask": "mask_token_id",
}  # fmt: skip


def special_tokens(checkpoint: PublishedFolder, config: Config, tokens: TokenTable) -> dict[str, Any]:
    """Return keys of `tokenizer.ggml`: ids of special tokens, and which of them are added around texts."""
    settings = dict(checkpoint.json("tokenizer_config.json"))
    around = _added_around(checkpoint, settings)
    ids = {text: id for id, (text, _) in added_tokens(checkpoint).items()}
    if tokens.model == "plamo2":
        ids |= {text: id for id, text in enumerate(tokens.texts)}
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


def _ends(checkpoint: PublishedFolder, config: Config, size: int) -> list[int]:
    """Return all tokens that end an answer."""
    value = checkpoint.json("generation_config.json").get("eos_token_id")
    value = config.get("eos_token_id") if value is None else value
    ids = value if isinstance(value, list) else [value]
    return list(dict.fromkeys(id for id in ids if type(id) is int and 0 <= id < size))


def _added_around(checkpoint: PublishedFolder, settings: dict[str, Any]) -> dict[str, bool]:
    """Return which tokens `tokenizer.json` adds around a text; those it names are added to `settings`."""
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
    if len(between) > 2:  # separators between two texts
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


def chat_templates(checkpoint: PublishedFolder) -> dict[str, str]:
    """Return keys of `tokenizer`: the chat template and other named templates."""
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


def vocabulary(checkpoint: PublishedFolder, config: Config, family: Family) -> dict[str, Any]:
    """Return all keys of `tokenizer`. Raises ConversionError if no readable vocabulary exists."""
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
    templates = {"chat_template": family.template} if family.template else chat_templates(checkpoint)
    return keys | {f"tokenizer.{key}": text for key, text in templates.items()}


def _tokens(checkpoint: PublishedFolder, config: Config) -> TokenTable:
    if (world := checkpoint.text(WORLD)) is not None:
        return world_tokens(world, config)
    if (lines := checkpoint.text(SCORED_LINES)) is not None:
        return scored_lines(lines, config)
    for name in FILES:
        if (path := checkpoint.folder / name).is_file():
            return pieces(checkpoint, config, path)
    if _is_in_two_files(checkpoint):
        return byte_pairs(checkpoint, config)
    given = checkpoint.json("tokenizer.json")
    model = given.get("model")
    if not isinstance(model, dict):
        raise ConversionError(f"{checkpoint.folder.name} has neither tokenizer.model nor tokenizer.json")
    kind = model.get("type") or ("BPE" if "merges" in model else "WordPiece")
    match kind:
        case "BPE" if model.get("byte_fallback") and not any(_steps(given, "ByteLevel")):
            return ranked_pieces(checkpoint, config)
        case "BPE" if any(_steps(given, "Whitespace")):
            raise ConversionError("tokenizer.json: BPE of whitespace-separated words is not supported")
        case "BPE":
            return byte_pairs(checkpoint, config)
        case "WordPiece":
            return word_pieces(checkpoint, config)
        case "Unigram":
            return unigrams(checkpoint, config)
    raise ConversionError(f"tokenizer.json: a vocabulary of type {shown(kind)} is not supported")


def _merge_as_gemma4(checkpoint: PublishedFolder, tokens: TokenTable) -> None:
    """Store merges instead of scores, and make text of the marks by which answers are parsed."""
    tokens.model, tokens.merges = "gemma4", merges_of(model_of(checkpoint, "BPE"))
    tokens.scores = [_NO_SCORE] * len(tokens.texts)
    tokens.more |= {"add_space_prefix": False, "add_bos_token": True}
    for id, text in enumerate(tokens.texts):
        if text in _VISIBLE:
            tokens.types[id] = int(TokenType.USER_DEFINED)


def _steps(given: dict[str, Any], kind: str) -> Iterator[dict[str, Any]]:
    """Yield the pre-tokenizer's steps of this `kind`."""
    step = given.get("pre_tokenizer")
    steps = step.get("pretokenizers") or [step] if isinstance(step, dict) else []
    return (each for each in steps if isinstance(each, dict) and each.get("type") == kind)


def _pre_tokenizer(checkpoint: PublishedFolder, family: Family) -> str:
    """Return the name of the pre-tokenizer that splits like `tokenizer.json`, the family's if possible.

    It is recognised by its expressions; an unknown one gets the family's name, or the default. Raises
    ConversionError if there is no `tokenizer.json`, and the family's models do not all split alike.
    """
    if _is_in_two_files(checkpoint) and family.pre not in _ALIKE:
        raise ConversionError(
            f"{checkpoint.folder.name} has no tokenizer.json, which says how texts are split into words"
        )
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
