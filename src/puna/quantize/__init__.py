"""Quantisation of model files: the type of each tensor, the importance of its columns, and the rewriting."""

from puna.quantize.importance import Importance, read_importance
from puna.quantize.mixture import file_type_of
from puna.quantize.rewrite import check_source, merge_parts, quantize_file

__all__ = [
    "Importance",
    "check_source",
    "file_type_of",
    "merge_parts",
    "quantize_file",
    "read_importance",
]
