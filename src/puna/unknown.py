"""Sentences about what a client names and nothing here is called, so that it is not ignored silently."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

#: Names that get a sentence each, and how much of a name is shown.
_MAX_NAMED: Final = 8
_LONGEST_NAME: Final = 40

#: Options by the names that other programs have for them; some are spelled more like another option.
_OTHER_NAMES: Final = {
    **dict.fromkeys(("max_tokens", "max_new_tokens", "max_length", "n_predict"), "num_predict"),
    **dict.fromkeys(("context_length", "ctx_size", "n_ctx", "max_context"), "num_ctx"),
    **dict.fromkeys(("threads", "n_threads", "num_threads"), "num_thread"),
    **dict.fromkeys(("temp", "t"), "temperature"),
    "repetition_penalty": "repeat_penalty",
    "n_gpu_layers": "num_gpu",
}


def unknown_and_ignored(kind: str, names: Sequence[str], known: Collection[str]) -> list[str]:
    """What to say of `names`, each an unknown `kind`, with the one of `known` that was probably meant.

    One of `known` may be the name of a place and, after a dot, a name there.
    """
    said = [_sentence(kind, name[:_LONGEST_NAME], known) for name in names[:_MAX_NAMED]]
    rest = len(names) - len(said)
    return said + ([f"{rest} more unknown {kind}s are ignored"] if rest else [])


def known_as(name: str) -> str:
    """Return the option that other programs call `name`; nothing if there is none."""
    return _OTHER_NAMES.get(name.lower(), "")


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Ask, in brackets, whether one of `known` was meant; nothing if none is near.

    That is one of the same name in another place, one that other programs call `name`, or one spelled alike.
    """
    from difflib import get_close_matches

    name = name[:_LONGEST_NAME]
    elsewhere = [one for one in known if one.endswith(f".{name}")]
    here = known_as(name)
    renamed = [one for one in known if one.rpartition(".")[2] == here]
    near = elsewhere or renamed or get_close_matches(name, known, n=1)
    return f' (did you mean "{near[0]}"?)' if near else ""


def _sentence(kind: str, name: str, known: Collection[str]) -> str:
    return f'{kind} "{name}" is unknown and ignored{did_you_mean(name, known)}'
