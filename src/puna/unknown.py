"""Warnings about unknown names from clients, so that none is ignored silently."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

#: Maximum number of names with a sentence each, and of characters shown of a name.
_MAX_NAMED: Final = 8
_LONGEST_NAME: Final = 40

#: Options by their names in other programs, some of which resemble another option more.
_OTHER_NAMES: Final = {
    **dict.fromkeys(("max_tokens", "max_new_tokens", "max_length", "n_predict"), "num_predict"),
    **dict.fromkeys(("context_length", "ctx_size", "n_ctx", "max_context"), "num_ctx"),
    **dict.fromkeys(("threads", "n_threads", "num_threads"), "num_thread"),
    **dict.fromkeys(("temp", "t"), "temperature"),
    "repetition_penalty": "repeat_penalty",
    "n_gpu_layers": "num_gpu",
}


def unknown_and_ignored(kind: str, names: Sequence[str], known: Collection[str]) -> list[str]:
    """Return warnings about `names`, each an unknown `kind`, with the `known` name that was probably meant.

    A known name may have a prefix before a dot, the name of an enclosing object.
    """
    said = [_sentence(kind, name[:_LONGEST_NAME], known) for name in names[:_MAX_NAMED]]
    rest = len(names) - len(said)
    return said + ([f"{rest} more unknown {kind}s are ignored"] if rest else [])


def known_as(name: str) -> str:
    """Return the option that other programs call `name`, or an empty string."""
    return _OTHER_NAMES.get(name.lower(), "")


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return a question, in brackets, whether a `known` name was meant; empty if none is near.

    It names the same name in another object, one that other programs call `name`, or one of similar spelling.
    """
    from difflib import get_close_matches

    name = name[:_LONGEST_NAME]
    elsewhere = [other for other in known if other.endswith(f".{name}")]
    here = known_as(name)
    renamed = [other for other in known if other.rpartition(".")[2] == here]
    near = elsewhere or renamed or get_close_matches(name, known, n=1)
    return f' (did you mean "{near[0]}"?)' if near else ""


def _sentence(kind: str, name: str, known: Collection[str]) -> str:
    return f'{kind} "{name}" is unknown and ignored{did_you_mean(name, known)}'
