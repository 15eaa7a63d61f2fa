"""The operations on a GPU: torch for memory and plain operations, Triton for the kernels."""
