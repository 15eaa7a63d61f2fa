"""Block formats: how tensors are stored, and float32 values from and to them."""

from puna.gguf.blocks.codec import QUANTIZABLE, dequantize, quantize

__all__ = ["QUANTIZABLE", "dequantize", "quantize"]
