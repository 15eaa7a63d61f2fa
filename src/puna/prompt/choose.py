"""Which chat format a model has."""

from __future__ import annotations

from puna.prompt.format import ChatFormat
from puna.prompt.go import GoTemplate
from puna.prompt.go_chat import PASS_THROUGH, GoFormat
from puna.prompt.model_facts import ModelFacts


def chat_format(facts: ModelFacts, template: str = "") -> ChatFormat:
    """The chat format of a model whose file says `facts`.

    The first there is of: `template`, the file's own Jinja template, and `{{ .Prompt }}`. Nothing of it is
    run before it renders. Raises TemplateError if it does not parse.
    """
    text = template or facts.chat_template or PASS_THROUGH
    if (template and not is_jinja(template)) or text is PASS_THROUGH:
        return GoFormat(text)
    # Not needed for every model, and slow to import.
    from puna.prompt.jinja_chat import JinjaFormat

    with_tools = None if template else facts.tool_template
    return JinjaFormat(text, facts.tokens, with_tools=with_tools)


def check_template(text: str) -> None:
    """Raises TemplateError if `text` is no template of either language."""
    if is_jinja(text):
        from puna.prompt.jinja import parsed

        parsed(text)
    else:
        GoTemplate.cached(text)


def is_jinja(text: str) -> bool:
    """Whether a template is Jinja: only there are statements written `{% %}`."""
    return "{%" in text
