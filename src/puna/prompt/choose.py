"""Which chat format a model has."""

from __future__ import annotations

from puna.prompt.format import ChatFormat
from puna.prompt.go import GoTemplate
from puna.prompt.go_chat import PASS_THROUGH, GoFormat
from puna.prompt.jinja import parsed
from puna.prompt.jinja_chat import JinjaFormat
from puna.prompt.model_facts import ModelFacts
from puna.prompt.stops import stop_strings


def chat_format(facts: ModelFacts, template: str = "") -> ChatFormat:
    """The chat format of a model whose file says `facts`.

    The first there is of: `template`, the file's own Jinja template, and `{{ .Prompt }}`. Nothing of it is
    run before it renders. Raises TemplateError if it does not parse.
    """
    form = _format(template, facts)
    form.stop = () if template and not is_jinja(template) else stop_strings(form.template)
    return form


def check_template(text: str) -> None:
    """Raises TemplateError if `text` is no template of either language."""
    if is_jinja(text):
        parsed(text)
    else:
        GoTemplate.cached(text)


def is_jinja(text: str) -> bool:
    """Whether a template is Jinja: only there are statements written `{% %}`."""
    return "{%" in text


def _format(template: str, facts: ModelFacts) -> ChatFormat:
    if template and not is_jinja(template):
        return GoFormat(template)
    if template:
        return JinjaFormat(template, facts.tokens)
    if facts.chat_template:
        return JinjaFormat(facts.chat_template, facts.tokens, with_tools=facts.tool_template)
    return GoFormat(PASS_THROUGH)
