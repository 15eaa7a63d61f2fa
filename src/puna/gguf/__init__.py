"""The GGUF file format: reader, writer, and the block types tensors are stored in."""

from puna.gguf.blocks import dequantize, quantize
from puna.gguf.part import TensorInfo
from puna.gguf.reader import GGUFFile, fingerprint, open_gguf
from puna.gguf.types import FileType, GGMLType, ValueType
from puna.gguf.values import NumberArray, StringArray, Value
from puna.gguf.writer import GGUFWriter

__all__ = [
    "FileType",
    "GGMLType",
    "GGUFFile",
    "GGUFWriter",
    "NumberArray",
    "StringArray",
    "TensorInfo",
    "Value",
    "ValueType",
    "dequantize",
    "fingerprint",
    "open_gguf",
    "quantize",
]
