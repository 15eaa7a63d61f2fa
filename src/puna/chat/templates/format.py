"""What every chat format can do, whichever language its template is written in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from puna.chat.answers.parts import Tags
from puna.chat.templates.jinja import JinjaTemplate
from puna.chat.templates.messages import Message
from puna.errors import NotSupportedError

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


#: Whether, or how hard, the model should think; None leaves it to the template.
Think = bool | str | None


@dataclass(frozen=True)
class SpecialTokens:
    """Spellings of a model's special tokens, and whether its tokenizer puts BOS in front by itself."""

    spellings: Mapping[str, str] = field(default_factory=dict)  # "bos_token" -> "<s>"
    adds_bos: bool = False


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """What a template's text says about a chat format, without being run."""

    #: Texts that end an answer, beside the model's own end-of-turn tokens.
    stop: tuple[str, ...] = ()
    #: The tags around thinking in the output, if the model thinks.
    thinking_tags: Tags | None = None
    #: The family whose markup the template writes, and for "template" the markup of calls itself.
    family: str = ""
    call_tags: Tags | None = None
    #: Whether the template has a place for tools, for the text after a gap, and for documents.
    takes_tools: bool = False
    takes_suffix: bool = False
    takes_documents: bool = False


class ChatFormat(ABC):
    """How one model wants its conversations written."""

    #: The template's text, as it would be shown.
    template: str
    traits: Traits

    @abstractmethod
    def render(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        tools: Iterable[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] = (),
        think: Think = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt text. A last message of role assistant is continued instead of answered.

        The text begins with the BOS token only where the tokenizer does not add it by itself.
        Raises TemplateError, RequestError for malformed messages.
        """

    def render_insert(self, prompt: str, suffix: str, *, think: Think = None) -> str:
        """The prompt for text between `prompt` and `suffix`. Raises NotSupportedError, TemplateError."""
        raise NotSupportedError("this model's template has no place for a suffix: it does not support insert")


def think_level(think: Think) -> str:
    """`low`, `medium`, `high` or `max`; empty when thinking is off or left to the template."""
    if think is True:
        return "medium"
    return think if isinstance(think, str) else ""
