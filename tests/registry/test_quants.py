"""Selection of a repository's files by name, with listings like those of real repositories."""

from __future__ import annotations

import pytest

from puna.errors import RegistryError
from puna.registry.hub import RepositoryFile, choose


def listing(*paths: str) -> list[RepositoryFile]:
    return [RepositoryFile(path, 1, f"sha256:{i:064x}") for i, path in enumerate(paths)]


PLAIN = listing(
    "Llama-3.2-1B-Instruct-BF16.gguf",
    "Llama-3.2-1B-Instruct-IQ3_XXS.gguf",
    "Llama-3.2-1B-Instruct-Q4_K_M.gguf",
    "Llama-3.2-1B-Instruct-Q4_K_S.gguf",
    "Llama-3.2-1B-Instruct-Q8_0.gguf",
    "Llama-3.2-1B-Instruct-UD-Q4_K_XL.gguf",
    "Llama-3.2-1B-Instruct.imatrix.gguf",
)
FOLDERS = listing(
    "BF16/DeepSeek-R1-BF16-00001-of-00002.gguf",
    "BF16/DeepSeek-R1-BF16-00002-of-00002.gguf",
    "Q4_K_M/DeepSeek-R1-Q4_K_M-00003-of-00003.gguf",
    "Q4_K_M/DeepSeek-R1-Q4_K_M-00001-of-00003.gguf",
    "Q4_K_M/DeepSeek-R1-Q4_K_M-00002-of-00003.gguf",
    "Q8_0/DeepSeek-R1-Q8_0-00001-of-00002.gguf",
)
VISION = listing(
    "gemma-3-4b-it-Q8_0.gguf",
    "gemma-3-4b-it-f16.gguf",
    "mmproj-model-f32.gguf",
    "mmproj-model-f16.gguf",
)


@pytest.mark.parametrize(
    ("tag", "stem"),
    [
        ("latest", "Llama-3.2-1B-Instruct-Q4_K_M"),
        ("Q8_0", "Llama-3.2-1B-Instruct-Q8_0"),
        ("q4_k_s", "Llama-3.2-1B-Instruct-Q4_K_S"),
        ("UD-Q4_K_XL", "Llama-3.2-1B-Instruct-UD-Q4_K_XL"),
        ("IQ3_XXS", "Llama-3.2-1B-Instruct-IQ3_XXS"),
        ("bf16", "Llama-3.2-1B-Instruct-BF16"),
        ("Llama-3.2-1B-Instruct-Q4_K_S.gguf", "Llama-3.2-1B-Instruct-Q4_K_S"),
    ],
)
def test_tag_selects_a_quantisation_or_a_file(tag: str, stem: str) -> None:
    choice = choose(PLAIN, tag, "hf.co/a/b")
    assert [part.stem for part in choice.parts] == [stem]
    assert choice.projector is None


def test_parts_are_ordered_and_must_be_complete() -> None:
    choice = choose(FOLDERS, "latest", "hf.co/a/b")
    assert [part.part for part in choice.parts] == [(1, 3), (2, 3), (3, 3)]
    assert {part.label for part in choice.parts} == {"Q4_K_M"}
    with pytest.raises(RegistryError, match="part 2 of 2 of DeepSeek-R1-Q8_0 is missing"):
        choose(FOLDERS, "Q8_0", "hf.co/a/b")


def test_projector_is_selected_with_the_model() -> None:
    choice = choose(VISION, "latest", "hf.co/a/b")
    assert [part.path for part in choice.parts] == ["gemma-3-4b-it-Q8_0.gguf"]
    assert choice.projector is not None
    assert choice.projector.path == "mmproj-model-f16.gguf"


def test_missing_quantisation_is_reported_with_those_available() -> None:
    with pytest.raises(RegistryError, match=r"hf.co/a/b has no 'Q9_X'; it has BF16, IQ3_XXS, Q4_K_M, Q4_K_S"):
        choose(PLAIN, "Q9_X", "hf.co/a/b")
    with pytest.raises(RegistryError, match="has no GGUF model"):
        choose(listing("model.safetensors", "mmproj-F16.gguf"), "latest", "hf.co/a/b")


def test_a_file_that_drafts_for_another_is_chosen_only_by_name() -> None:
    files = listing("model-Q4_K_M.gguf", "eagle3-model-Q8_0.gguf", "mmproj-F16.gguf")
    assert [part.path for part in choose(files, "latest", "hf.co/a/b").parts] == ["model-Q4_K_M.gguf"]
    with pytest.raises(RegistryError, match="has no 'Q8_0'; it has Q4_K_M"):
        choose(files, "Q8_0", "hf.co/a/b")
    named = choose(files, "eagle3-model-Q8_0", "hf.co/a/b")
    assert ([part.path for part in named.parts], named.projector) == (["eagle3-model-Q8_0.gguf"], None)
    alone = choose(listing("eagle3-model-Q8_0.gguf"), "latest", "hf.co/a/b")
    assert [part.path for part in alone.parts] == ["eagle3-model-Q8_0.gguf"]
