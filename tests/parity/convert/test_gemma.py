"""Gemma 1 to 4 and EmbeddingGemma, converted by us and by llama.cpp's converter."""

from __future__ import annotations

from pathlib import Path

import pytest

from puna.convert import convert
from puna.gguf import FileType
from tests.convert.test_modules import embedding_gemma
from tests.parity.convert.conversion import PEERS, UNKNOWN, WITHIN, Lineage, Published, check_ears, theirs

pytestmark = PEERS

GEMMA = Lineage(
    ("gemma",),
    published={"Gemma3ForConditionalGeneration": Published(lambda config: UNKNOWN, renamed=WITHIN)},
    differing={
        "gemma3": {"attention.sliding_window_pattern"},  # unusual in the tiny vision model
        "gemma-embedding": {"attention.sliding_window_pattern"},
        "gemma3n": {"altup.correct_scale"},
    },
    failing={
        "gemma2 without caps": "requires numbers for the caps",
        "gemma3n, second of three streams": "knows four streams only",
    },
)
#: Keys that theirs omits; ours writes them because the tiny models differ from what readers assume.
ALSO_SAID = {
    "gemma4": {"vision.image_max_pixels", "vision.projector.scale_factor"},
    "gemma4, small": {"vision.image_max_pixels", "vision.projector.scale_factor"},
}


@pytest.mark.parametrize("name", GEMMA.decoders)
def test_keys_and_tensors_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    GEMMA.check_decoder(name, tmp_path)


@pytest.mark.parametrize("name", ["gemma3", "gemma3n", "gemma4", "gemma4, small"])
def test_vision_models_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    GEMMA.check_vision(name, tmp_path, apart=ALSO_SAID.get(name, ()))


def test_embedding_gemma_is_that_of_llama_cpp(tmp_path: Path) -> None:
    folder = embedding_gemma(tmp_path / "checkpoint")
    convert(folder, tmp_path / "ours.gguf", FileType.F32)
    linears = "--sentence-transformers-dense-modules"
    GEMMA.check_same(tmp_path / "ours.gguf", theirs(folder, tmp_path / "theirs.gguf", linears))


def test_the_audio_tower_of_gemma_3n_is_that_of_llama_cpp(tmp_path: Path) -> None:
    GEMMA.check_vision("gemma3n", tmp_path, text=False)
    # Their length is that of the published model.
    check_ears(tmp_path / "ours.gguf", tmp_path / "theirs.gguf", {"feed_forward_length"})
