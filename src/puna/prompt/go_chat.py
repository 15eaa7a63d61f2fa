"""Prompts from an Ollama template layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from puna.errors import NotSupportedError
from puna.markup.registry import TEMPLATE, family_of
from puna.prompt.format import ChatFormat, Think, Traits, think_level
from puna.prompt.go import GoTemplate
from puna.prompt.go_tags import call_tags, thinking_tags
from puna.prompt.go_values import collated, message_values, tool_values
from puna.prompt.messages import Message, as_messages

#: What a model without any template gets.
PASS_THROUGH = "{{ .Prompt }}"


class GoFormat(ChatFormat):
    """A Go template with Ollama's values; templates that know no messages are run turn by turn."""

    def __init__(self, template: str) -> None:
        """Raises TemplateError."""
        self.template = template
        parsed = GoTemplate(template)
        self.identifiers = parsed.identifiers
        if not self.identifiers & {"messages", "response"}:
            parsed = parsed.appended("{{ .Response }}")
        self._template = parsed
        family = family_of(template, calls=bool({"tools", "toolcalls"} & self.identifiers))
        self.traits = Traits(
            thinking_tags=thinking_tags(parsed),
            family=family.name,
            call_tags=call_tags(parsed) if family is TEMPLATE else None,
            takes_tools="tools" in self.identifiers,
            takes_suffix="suffix" in self.identifiers,
        )

    def render(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        tools: Iterable[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] = (),
        think: Think = None,
        add_generation_prompt: bool = True,
    ) -> str:
        # No template of this language has a place for documents.
        system, merged = collated(as_messages(messages))
        if "messages" not in self.identifiers:
            return self._turn_by_turn(merged, _think_values(think))
        values = {
            "System": system,
            "Messages": message_values(merged),
            "Tools": tool_values(tools),
            "Response": "",
            **_think_values(think),
        }
        return self._template.execute(values)

    def render_insert(self, prompt: str, suffix: str, *, think: Think = None) -> str:
        if not self.traits.takes_suffix:
            raise NotSupportedError("this model's template has no suffix: it does not support insert")
        values = {"Prompt": prompt, "Suffix": suffix, "Response": "", **_think_values(think)}
        return self._template.execute(values)

    def _turn_by_turn(self, messages: Sequence[Message], think: Mapping[str, Any]) -> str:
        """Run the template once per turn; the last run stops where the answer is to begin."""
        parts: list[str] = []
        turn = {"System": "", "Prompt": "", "Response": ""}

        def finish_turn() -> None:
            parts.append(self._template.execute({**turn, **think}))
            turn.update(System="", Prompt="", Response="")

        for message in messages:
            if message.role == "system":
                if turn["Prompt"] or turn["Response"]:
                    finish_turn()
                turn["System"] = message.content
            elif message.role == "user":
                if turn["Response"]:
                    finish_turn()
                turn["Prompt"] = message.content
            elif message.role == "assistant":
                turn["Response"] = message.content
        parts.append(self._template.execute_until("Response", {**turn, **think}))
        return "".join(parts)


def _think_values(think: Think) -> dict[str, Any]:
    return {"Think": bool(think), "ThinkLevel": think_level(think), "IsThinkSet": think is not None}
