"""Facts about a model file that matter for chats, read once per file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from puna.architectures import ARCHITECTURES, UNKNOWN
from puna.audio.registry import hearing_type
from puna.chat.templates.defaults import TELLING_TOKENS
from puna.chat.templates.messages import SpecialTokens
from puna.errors import GGUFError
from puna.gguf import GGUFFile, open_gguf
from puna.model.pooling import is_reranker
from puna.tokenizer.special_ids import adds_bos
from puna.vision.registry import PROJECTOR_ARCHITECTURE, has_tower, is_read_by, projector_type

_TEMPLATE = "tokenizer.chat_template"

#: Names templates use, and the GGUF keys of the same tokens.
_SPECIAL = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "cls_token": "cls_token_id",
    "sep_token": "separator_token_id",
    "mask_token": "mask_token_id",
}

_ENDS = {"eos_token": "eos_token_id", "eot_token": "eot_token_id", "eom_token": "eom_token_id"}

#: Default ids of SentencePiece files.
_USUAL_IDS = {"bos_token": 1, "eos_token": 2, "unk_token": 0}


@dataclass(frozen=True)
class ModelFacts:
    """Facts about a model file that matter for chats."""

    architecture: str = ""
    chat_template: str | None = None
    tool_template: str | None = None
    tokens: SpecialTokens = field(default_factory=SpecialTokens)
    ends: frozenset[str] = frozenset()  # tokens after which an answer is complete
    telling_tokens: frozenset[str] = frozenset()  # tokens of the vocabulary that identify the chat format
    embeds: bool = False
    ranks: bool = False
    sees: bool = False
    hears: bool = False
    transcribes: bool = False
    projector: str = ""  # the type of the vision tower in a file with nothing but towers
    hearing: str = ""  # the type of the audio tower in such a file

    def senses_by(self, towers: ModelFacts) -> list[str]:
        """Return those of "vision" and "audio" that the file with the facts `towers` gives the model."""
        kinds = {"vision": towers.projector, "audio": towers.hearing}
        return [sense for sense, kind in kinds.items() if is_read_by(kind, self.architecture)]


def read_facts(file: GGUFFile) -> ModelFacts:
    transcribes = ARCHITECTURES.get(file.architecture, UNKNOWN).transcribes
    is_projector = file.architecture == PROJECTOR_ARCHITECTURE
    return ModelFacts(
        architecture=file.architecture,
        chat_template=_text(file, _TEMPLATE),
        tool_template=_text(file, f"{_TEMPLATE}.tool_use"),
        tokens=SpecialTokens(
            _spellings(file, _SPECIAL), adds_bos(file, str(file.get("tokenizer.ggml.model")))
        ),
        ends=frozenset(_spellings(file, _ENDS).values()),
        telling_tokens=_telling_tokens(file),
        embeds=file.get("pooling_type") is not None or is_reranker(file),
        ranks=is_reranker(file),
        sees=has_tower(file),
        hears=transcribes and file.get("audio.block_count") is not None,
        transcribes=transcribes,
        projector=projector_type(file) if is_projector else "",
        hearing=hearing_type(file) if is_projector else "",
    )


def projector_for(paths: Iterable[Path], model: Path | str) -> Path | None:
    """Return the first of some files of towers that fits the model at `model`, if any."""
    facts = facts_at(Path(model))
    for path in paths:
        towers = facts_at(path)
        if facts and towers and facts.senses_by(towers):
            return path
    return None


def facts_at(path: Path) -> ModelFacts | None:
    """Return the facts of the file at `path`; None if it is missing or damaged."""
    try:
        status = path.stat()
        return _facts(path, status.st_ino, status.st_ctime_ns, status.st_size)
    except (OSError, GGUFError):
        return None


@lru_cache(maxsize=256)
def _facts(path: Path, inode: int, changed_ns: int, size: int) -> ModelFacts:
    # Inode, time and size only make a replaced or changed file be read again.
    with open_gguf(path) as file:
        return read_facts(file)


def _telling_tokens(file: GGUFFile) -> frozenset[str]:
    if _text(file, _TEMPLATE) is not None:
        return frozenset()  # only needed without a template
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if tokens is None or isinstance(tokens, str | int | float):
        return frozenset()
    return TELLING_TOKENS.intersection(map(str, tokens))


def _spellings(file: GGUFFile, keys: Mapping[str, str]) -> dict[str, str]:
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if tokens is None or isinstance(tokens, str | int | float):
        return {}
    sentence_piece = file.get("tokenizer.ggml.model") == "llama"
    found: dict[str, str] = {}
    for name, key in keys.items():
        usual = _USUAL_IDS.get(name) if sentence_piece else None
        token: Any = file.get(f"tokenizer.ggml.{key}", usual)
        if isinstance(token, int) and 0 <= token < len(tokens):
            found[name] = str(tokens[token])
    return found


def _text(file: GGUFFile, key: str) -> str | None:
    value = file.metadata.get(key)
    return value if isinstance(value, str) and value.strip() else None
