"""Lookup of the family that a model belongs to."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, Final

from puna.architectures import ARCHITECTURES
from puna.convert.checkpoint import Checkpoint
from puna.convert.config import Config
from puna.convert.family import SENSES, Family
from puna.errors import ConversionError, shown

_TEXTS: Final = tuple(
    sorted({f"families.{name}" for record in ARCHITECTURES.values() for name in record.converters})
)
_TOWERS: Final = (
    "towers.audio",
    "towers.clip",
    "towers.deepseek_ocr",
    "towers.gemma4",
    "towers.kimi",
    "towers.llama",
    "towers.minicpm",
    "towers.minimax",
    "towers.qwen",
    "towers.step",
)

#: Rerankers that GGUF has no layout for, and what is missing.
_REFUSED: Final = {
    "DistilBertForSequenceClassification": "GGUF has no classifier with a ReLU",
    "DebertaV2ForSequenceClassification": "GGUF has no attention that separates content and position",
    "ElectraForSequenceClassification": "GGUF has no classifier with a GELU of this kind of model",
    "NewForSequenceClassification": "GGUF has no rotation with gates in a model of this kind",
    "JinaForRanking": "GGUF has no projector for document embeddings",
    "Qwen3ForSequenceClassification": "its folder does not say how to combine a query and a document",
}


def family_of(checkpoint: Checkpoint) -> Family:
    """Return the family that `architectures` of config.json names. Raises ConversionError.

    A multimodal model has a family for the whole, or one for the text model within it.
    """
    config = checkpoint.config
    name, families = _architecture(config), _families(_TEXTS)
    if name in _REFUSED:
        raise ConversionError(f"{name}: it cannot be converted: {_REFUSED[name]}")
    if is_tower_alone(config):
        raise ConversionError(
            f"{name}: the folder has a tower and no text model; 'puna convert' writes the tower to a file, "
            "which a Modelfile adds to the text model that config.json names"
        )
    found = _matching(families_called(name), Config(config, checkpoint)) or _nested_family(families, config)
    if found is not None:
        return found
    if name in families:
        raise ConversionError(f"{name}: no supported variant has these settings")
    near = get_close_matches(name[:100], families, n=1)
    nearest = f"; the nearest is {near[0]}" if near else ""
    raise ConversionError(
        f"unsupported architecture {shown(name)}: it cannot be converted{nearest}; if llama.cpp's "
        "convert_hf_to_gguf.py can convert it, or somebody has published a GGUF file of it, use that"
    )


def towers_of(config: Mapping[str, Any]) -> list[Family]:
    """Return the families of this model's towers, at most one for each sense. Raises ConversionError."""
    known = _families(_TOWERS).get(_architecture(config), ())
    by_sense = (_matching((f for f in known if f.sense == sense), Config(config)) for sense in SENSES)
    return [each for each in by_sense if each and isinstance(config.get(each.tower_section), dict)]


def is_tower_alone(config: Mapping[str, Any]) -> bool:
    """Whether checkpoints of this model have a tower and no text model. Raises ConversionError."""
    return any(family.alone for family in _families(_TOWERS).get(_architecture(config), ()))


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    if not isinstance(name, str):
        raise ConversionError("unknown architecture: config.json lacks 'architectures'")
    return name


def _matching(families: Iterable[Family], config: Config) -> Family | None:
    return next((family for family in families if family.when(config)), None)


def _nested_family(families: Mapping[str, list[Family]], config: Mapping[str, Any]) -> Family | None:
    """Return the family of the nested text model, as its own settings name it."""
    for part in ("text_config", "llm_config"):
        inner = config.get(part)
        if not isinstance(inner, dict):
            continue
        names = inner.get("architectures") or ()
        kind = str(inner.get("model_type")).removesuffix("_text").replace("_", "")
        for name, found in families.items():
            if name in names or name.lower().replace("_", "") == f"{kind}forcausallm":
                return _matching(found, Config(config))
    return None


def text_families() -> list[Family]:
    """Return the families of all text models."""
    return [family for families in _families(_TEXTS).values() for family in families]


def families_called(name: str) -> list[Family]:
    """Return the text families that config.json's `architectures` calls `name`."""
    return _families(_TEXTS).get(name, [])


def convertible() -> list[str]:
    """Return all convertible architectures, as config.json names them, sorted."""
    return sorted(_families(_TEXTS))


def convertible_towers() -> list[str]:
    """Return the convertible architectures with towers, sorted."""
    return sorted(_families(_TOWERS))


@cache
def _families(modules: tuple[str, ...]) -> dict[str, list[Family]]:
    found: dict[str, list[Family]] = {}
    for module in modules:
        for family in importlib.import_module(f"puna.convert.{module}").FAMILIES:
            for name in family.hf:
                found.setdefault(name, []).append(family)
    return found
