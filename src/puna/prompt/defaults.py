"""Chat templates of models whose files have none, by the token that ends a turn.

A model that ends its answers with such a token was trained on conversations of that form. Others, which only
know to end a text, get their prompts as they are.
"""

from __future__ import annotations

from typing import Final

_CHATML: Final = """\
{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

_LLAMA_3: Final = """\
{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>

{{ message.content | trim }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}\
<|start_header_id|>assistant<|end_header_id|>

{% endif %}"""

_GEMMA: Final = """\
{{ bos_token }}{% for message in messages %}{% if message.role == 'system' %}\
{{ raise_exception('there is no system role') }}{% endif %}\
<start_of_turn>{{ 'model' if message.role == 'assistant' else message.role }}
{{ message.content | trim }}<end_of_turn>
{% endfor %}{% if add_generation_prompt %}<start_of_turn>model
{% endif %}"""

_PHI_3: Final = """\
{% for message in messages %}<|{{ message.role }}|>
{{ message.content }}<|end|>
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}"""

_WORLD: Final = """\
{{ bos_token }}{% for message in messages %}{{ message.role | capitalize }}: {{ message.content | trim }}

{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"""

#: A name that files have instead of a template, which llama.cpp has itself.
WORLD_NAME: Final = "rwkv-world"

_BY_END: Final = {
    "<|im_end|>": _CHATML,
    "<|eot_id|>": _LLAMA_3,
    "<end_of_turn>": _GEMMA,
}


def default_template(architecture: str, end: str) -> str:
    """The Jinja template of a model of this architecture whose answers end with `end`; empty if unknown."""
    if architecture == "phi3" and end == "<|end|>":
        return _PHI_3
    if architecture == "rwkv7":
        return _WORLD
    return _BY_END.get(end, "")
