"""Type numbers, sizes and labels against the gguf package."""

from __future__ import annotations

import gguf
import pytest

from puna.gguf import FileType, GGMLType, ValueType
from puna.gguf.blocks.layout import LAYOUTS

REFERENCE = {kind.name: kind for kind in gguf.GGMLQuantizationType}


@pytest.mark.parametrize("kind", [kind for kind in GGMLType if kind is not GGMLType.MXFP4_PAIRS])
def test_numbers_and_sizes_match_the_reference(kind: GGMLType) -> None:
    reference = REFERENCE[kind.name]
    assert kind == reference
    if kind is GGMLType.Q8_1:  # ggml-common.h: two float16 and 32 int8; the package counts two float32
        assert (kind.block_size, kind.type_size) == (32, 2 + 2 + 32)
    else:
        assert (kind.block_size, kind.type_size) == gguf.GGML_QUANT_SIZES[reference]


@pytest.mark.parametrize("kind", list(GGMLType))
def test_the_fields_of_a_block_fill_it(kind: GGMLType) -> None:
    assert LAYOUTS[kind].itemsize == kind.type_size


def test_nbytes_counts_whole_blocks() -> None:
    assert GGMLType.Q4_K.nbytes(512) == 288
    assert GGMLType.F16.nbytes(3) == 6
    with pytest.raises(ValueError, match="100 elements do not fill Q4_K blocks of 256"):
        GGMLType.Q4_K.nbytes(100)


def test_file_type_labels_match_the_reference() -> None:
    labels = {
        kind.value: kind.name.removeprefix("MOSTLY_").removeprefix("ALL_") for kind in gguf.LlamaFileType
    }
    for file_type in FileType:
        if file_type is not FileType.MXFP4:  # Ollama gives it the number 4
            assert file_type.label == labels[file_type.value]


def test_value_types_match_the_reference() -> None:
    assert {kind.name: kind.value for kind in ValueType} == {
        kind.name: kind.value for kind in gguf.GGUFValueType
    }
