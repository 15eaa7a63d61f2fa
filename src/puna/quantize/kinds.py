"""The ways a file can be quantised, by the names people know."""

from __future__ import annotations

from typing import Final

from puna.errors import RequestError, shown
from puna.gguf import FileType, GGMLType

#: What most of a file's matrices become.
MOSTLY: Final = {
    FileType.F32: GGMLType.F32,
    FileType.F16: GGMLType.F16,
    FileType.BF16: GGMLType.BF16,
    FileType.Q8_0: GGMLType.Q8_0,
    FileType.Q4_0: GGMLType.Q4_0,
    FileType.Q4_1: GGMLType.Q4_1,
    FileType.Q5_0: GGMLType.Q5_0,
    FileType.Q5_1: GGMLType.Q5_1,
    FileType.Q2_K: GGMLType.Q2_K,
    FileType.Q2_K_S: GGMLType.Q2_K,
    FileType.Q3_K_S: GGMLType.Q3_K,
    FileType.Q3_K_M: GGMLType.Q3_K,
    FileType.Q3_K_L: GGMLType.Q3_K,
    FileType.Q4_K_S: GGMLType.Q4_K,
    FileType.Q4_K_M: GGMLType.Q4_K,
    FileType.Q5_K_S: GGMLType.Q5_K,
    FileType.Q5_K_M: GGMLType.Q5_K,
    FileType.Q6_K: GGMLType.Q6_K,
    FileType.IQ4_NL: GGMLType.IQ4_NL,
    FileType.IQ4_XS: GGMLType.IQ4_XS,
    FileType.TQ1_0: GGMLType.TQ1_0,
    FileType.TQ2_0: GGMLType.TQ2_0,
    FileType.MXFP4_MOE: GGMLType.MXFP4,
}

_SHORT: Final = {
    "Q3_K": FileType.Q3_K_M,
    "Q4_K": FileType.Q4_K_M,
    "Q5_K": FileType.Q5_K_M,
    "MXFP4": FileType.MXFP4_MOE,
}


def file_type_of(text: str) -> FileType:
    """The way that `text` names, in any case: `q4_K_M`. Raises RequestError that lists what there is."""
    name = text.strip().upper()
    kind = _SHORT.get(name) or FileType.__members__.get(name)
    if kind is None or kind not in MOSTLY:
        raise RequestError(
            f"unsupported quantization type {shown(text)} - supported types are "
            f"{', '.join(kind.label for kind in MOSTLY)}"
        )
    return kind
