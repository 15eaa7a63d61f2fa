"""Triton kernels, and the functions that launch them on torch tensors.

A launch depends on shapes alone: nothing waits for the device or reads its memory, so that passes can be
recorded as graphs.
"""
