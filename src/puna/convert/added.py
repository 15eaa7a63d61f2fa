"""The tokens that were added to a tokenizer's own."""

from __future__ import annotations

from puna.convert.checkpoint import Checkpoint


def added_tokens(checkpoint: Checkpoint) -> dict[int, tuple[str, bool]]:
    """Of each token that was added, its text and whether it is special."""
    found: dict[int, tuple[str, bool]] = {}
    for text, id in checkpoint.json("added_tokens.json").items():
        if type(id) is int:
            found[id] = text, False
    decoder = checkpoint.json("tokenizer_config.json").get("added_tokens_decoder")
    entries = list(decoder.items()) if isinstance(decoder, dict) else []
    entries += [
        (entry.get("id"), entry)
        for entry in checkpoint.json("tokenizer.json").get("added_tokens") or ()
        if isinstance(entry, dict)
    ]
    for id, entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get("content"), str) and str(id).isdecimal():
            found[int(id)] = entry["content"], bool(entry.get("special"))
    return found
