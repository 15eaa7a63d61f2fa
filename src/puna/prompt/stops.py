"""Texts at which an answer has run into the next turn."""

from __future__ import annotations

from puna.prompt.jinja import JinjaTemplate

#: The first entry whose marker the template writes, and no excluded one, counts. A model's end-of-turn
#: token ends its answer anyway; these catch models that write the markers as ordinary text.
_STOPS: tuple[tuple[str, str | None, tuple[str, ...]], ...] = (
    ("<|im_start|>", None, ("<|im_start|>", "<|im_end|>")),
    ("<|start_header_id|>", None, ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
    ("<start_of_turn>", None, ("<start_of_turn>", "<end_of_turn>")),
    ("<|START_OF_TURN_TOKEN|>", None, ("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>")),
    ("<|end|>", "<|channel|>", ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>")),
)


def stop_strings(template: JinjaTemplate) -> tuple[str, ...]:
    """Stop strings for a template; none for one that is not known."""
    for marker, excluded, stops in _STOPS:
        if template.literal(marker) and not (excluded and template.literal(excluded)):
            return stops
    return ()
