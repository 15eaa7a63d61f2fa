"""Draft models, assistants and prediction heads, tampered with: loaded beside a model, whose answer stays."""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import puna
from tests.engine.drafting import draft_always
from tests.fuzz.case import Bounds
from tests.fuzz.invented import Model
from tests.fuzz.tampering import encoded_at_times_damaged, tamper, without_architecture
from tests.tiny.assistants import TinyAssistant, TinyTarget
from tests.tiny.decoders import tiny_decoder_gguf
from tests.tiny.eagle import WILD, eagle3_files
from tests.tiny.llama import TinyLlama, tiny_llama_gguf

BOUNDS = Bounds(seconds=5.0, memory=128 << 20)


@dataclass(frozen=True)
class _Drafted:
    """A model, what drafts for it, and its answer, which no draft may change."""

    model: bytes
    drafter: Model
    answer: list[int]


def _answer(path: Path, draft: Path | None = None) -> list[int]:
    with puna.load(path, draft=draft, num_ctx=128, parallel=1) as loaded:
        return loaded.generate("once upon a time there was", temperature=0, num_predict=24).tokens


def _drafted() -> list[_Drafted]:
    """Build all before a case's time begins, since it takes seconds."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small = tiny_llama_gguf(folder / "small.gguf", TinyLlama(layers=1, seed=1))
        files = [(tiny_llama_gguf(folder / "llama.gguf", TinyLlama()), small)]
        for number, clusters in enumerate((0, 16)):
            tiny = TinyAssistant(target=TinyTarget(seed=90), clusters=clusters, seed=91)
            target = tiny_decoder_gguf(folder / f"gemma{number}.gguf", tiny.target)
            files.append((target, tiny_decoder_gguf(folder / f"assistant{number}.gguf", tiny)))
        for number, eagle in enumerate(WILD.values()):
            (place := folder / f"eagle{number}").mkdir()
            files.append(eagle3_files(place, eagle))
        for path, drafter in files:
            found.append(_Drafted(path.read_bytes(), Model.read(drafter), _answer(path)))
    return found


_MODELS = _drafted()
_KEYS = without_architecture(key for each in _MODELS for key in each.drafter.keys)
_TENSORS = sorted({name for each in _MODELS for name in each.drafter.tensors})


def fuzz(dice: random.Random, folder: Path) -> None:
    drafted = dice.choice(_MODELS)
    drafter = drafted.drafter.copy()
    tamper(dice, drafter, drafter.keys["general.architecture"], _KEYS, _TENSORS)
    path, draft = folder / "model.gguf", folder / "draft.gguf"
    path.write_bytes(drafted.model)
    draft.write_bytes(encoded_at_times_damaged(dice, drafter))
    with pytest.MonkeyPatch.context() as patch:
        draft_always(patch, dice)
        answer = _answer(path, draft)
    assert answer == drafted.answer, f"{answer}, without drafts {drafted.answer}"
