"""The GGUF file format: a reader, a writer, and the block types of tensors."""

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
