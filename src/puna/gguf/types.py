"""The types of tensors, files and metadata values in GGUF."""

from __future__ import annotations

import enum


class GGMLType(enum.IntEnum):
    """Type of a tensor's elements, numbered as in the file.

    Quantised types store `block_size` consecutive elements (along the last axis of the row-major shape) in
    `type_size` bytes.
    """

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    MXFP4_PAIRS = 4  # MXFP4 with adjacent elements in one byte, written for a short time in 2025
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9  # activations only, not found in model files
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15  # activations only, not found in model files
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39

    @property
    def block_size(self) -> int:
        """Elements in one block (1 for plain number types)."""
        return _SIZES[self][0]

    @property
    def type_size(self) -> int:
        """Bytes in one block."""
        return _SIZES[self][1]

    @property
    def is_quantized(self) -> bool:
        return self.block_size > 1

    def nbytes(self, count: int) -> int:
        """Return the size in bytes of `count` elements. Raises ValueError unless they are whole blocks."""
        blocks, rest = divmod(count, self.block_size)
        if rest:
            raise ValueError(f"{count} elements do not fill {self.name} blocks of {self.block_size}")
        return blocks * self.type_size


_SIZES: dict[GGMLType, tuple[int, int]] = {
    GGMLType.F32: (1, 4),
    GGMLType.F16: (1, 2),
    GGMLType.BF16: (1, 2),
    GGMLType.F64: (1, 8),
    GGMLType.I8: (1, 1),
    GGMLType.I16: (1, 2),
    GGMLType.I32: (1, 4),
    GGMLType.I64: (1, 8),
    GGMLType.Q4_0: (32, 18),
    GGMLType.Q4_1: (32, 20),
    GGMLType.Q5_0: (32, 22),
    GGMLType.Q5_1: (32, 24),
    GGMLType.Q8_0: (32, 34),
    GGMLType.Q8_1: (32, 36),
    GGMLType.MXFP4: (32, 17),
    GGMLType.MXFP4_PAIRS: (32, 17),
    GGMLType.IQ4_NL: (32, 18),
    GGMLType.Q2_K: (256, 84),
    GGMLType.Q3_K: (256, 110),
    GGMLType.Q4_K: (256, 144),
    GGMLType.Q5_K: (256, 176),
    GGMLType.Q6_K: (256, 210),
    GGMLType.Q8_K: (256, 292),
    GGMLType.IQ1_S: (256, 50),
    GGMLType.IQ1_M: (256, 56),
    GGMLType.IQ2_XXS: (256, 66),
    GGMLType.IQ2_XS: (256, 74),
    GGMLType.IQ2_S: (256, 82),
    GGMLType.IQ3_XXS: (256, 98),
    GGMLType.IQ3_S: (256, 110),
    GGMLType.IQ4_XS: (256, 136),
    GGMLType.TQ1_0: (256, 54),
    GGMLType.TQ2_0: (256, 66),
}


class FileType(enum.IntEnum):
    """`general.file_type`: how a file was quantised.

    It is only a label, as single tensors may have other types.
    """

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    MXFP4 = 4
    Q8_0 = 7
    Q5_0 = 8
    Q5_1 = 9
    Q2_K = 10
    Q3_K_S = 11
    Q3_K_M = 12
    Q3_K_L = 13
    Q4_K_S = 14
    Q4_K_M = 15
    Q5_K_S = 16
    Q5_K_M = 17
    Q6_K = 18
    IQ2_XXS = 19
    IQ2_XS = 20
    Q2_K_S = 21
    IQ3_XS = 22
    IQ3_XXS = 23
    IQ1_S = 24
    IQ4_NL = 25
    IQ3_S = 26
    IQ3_M = 27
    IQ2_S = 28
    IQ2_M = 29
    IQ4_XS = 30
    IQ1_M = 31
    BF16 = 32
    TQ1_0 = 36
    TQ2_0 = 37
    MXFP4_MOE = 38

    @property
    def label(self) -> str:
        """The usual name, e.g. `Q4_K_M`."""
        return self.name


class ValueType(enum.IntEnum):
    """Type of a metadata value, numbered as in the file."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12
