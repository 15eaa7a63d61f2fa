"""Quantises model files: which tensor gets which type, and what matters in it; a piece at a time."""

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
