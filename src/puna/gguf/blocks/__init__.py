"""Block formats: conversion between stored tensors and float32 values."""

from puna.gguf.blocks.codec import QUANTIZABLE, dequantize, quantize

__all__ = ["QUANTIZABLE", "dequantize", "quantize"]
