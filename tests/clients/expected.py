"""The models' answers to the questions of asked.json, which every client must receive."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.scripted import randomly_cut, trigger, write_scripted

ASKED: dict[str, Any] = json.loads((Path(__file__).parent / "asked.json").read_text())

#: A template like those of the family `hermes`.
TEMPLATE = (
    """\
{% if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call a tool as <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}\
{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
    # The template names a script if no message does: the model is surer then, which matters when sampling.
    + f"{{% if '<<' not in messages | string %}}{trigger(0)}{{% endif %}}"
)

CHAT = "Foxes live in dens 🦊.\n\nThey hunt at night, “quietly”."
TRIP = {"city": "Lima", "days": 2}
CALLS = [["get_weather", {"city": "Zürich", "days": 2}], ["get_weather", {"city": "Lima", "days": 1}]]
WEATHER = "It is sunny in Zürich and Lima."


def _call(name: str, arguments: dict[str, Any]) -> str:
    # Forced calls are compact JSON: a grammar accepts no other spelling.
    written = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    return f'<tool_call>\n{{"name": "{name}", "arguments": {written}}}\n</tool_call>'


#: The first answers every question that names no other. For a schema, the model prefers an answer without it.
SCRIPTS = [
    "\n".join(_call(name, arguments) for name, arguments in CALLS),
    CHAT,
    "I would rather stay at home.",
    WEATHER,
    _call("Trip", TRIP),
]


def write_model(path: Path, scripts: list[str] | None = None) -> Path:
    """Write the model that says `scripts`, by default `SCRIPTS`."""
    return write_scripted(path, randomly_cut(scripts or SCRIPTS), template=TEMPLATE)
