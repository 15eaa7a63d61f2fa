"""What an embedding model's template puts around a text: the instruction it was trained to see there."""

from __future__ import annotations

from functools import lru_cache

from puna.chat.templates.go import GoTemplate
from puna.chat.templates.go.nodes import Action, Field, Statement, Text
from puna.errors import TemplateError


@lru_cache(maxsize=256)
def frame(template: str) -> tuple[str, str]:
    """The text that `template` puts before and after `{{ .Prompt }}`; of any other template, nothing.

    Only a template that does nothing else is meant for texts to embed. One of conversations, which a model
    that also embeds may have, is none.
    """
    try:
        statements = GoTemplate(template).tree.root
    except TemplateError:
        return "", ""
    texts = [""]
    for statement in statements:
        if isinstance(statement, Text):
            texts[-1] += statement.text
        elif _is_prompt(statement):
            texts.append("")
        else:
            return "", ""
    return (texts[0], texts[1]) if len(texts) == 2 else ("", "")


def _is_prompt(statement: Statement) -> bool:
    if not isinstance(statement, Action) or statement.pipeline.variables:
        return False
    words = [word for command in statement.pipeline.commands for word in command.words]
    return len(words) == 1 and isinstance(words[0], Field) and words[0].names == ("Prompt",)
