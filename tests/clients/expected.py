"""What the models of these tests say to what asked.json asks, and hence what every client must get."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.scripted import randomly_cut, trigger, write_scripted

ASKED: dict[str, Any] = json.loads((Path(__file__).parent / "asked.json").read_text())

#: As the models of the family `hermes` have it.
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
    # Where nobody names a script, the template does: the model is surer then, and tokens are drawn.
    + f"{{% if '<<' not in messages | string %}}{trigger(0)}{{% endif %}}"
)

CHAT = "Foxes live in dens 🦊.\n\nThey hunt at night, “quietly”."
TRIP = {"city": "Lima", "days": 2}
CALLS = [["get_weather", {"city": "Zürich", "days": 2}], ["get_weather", {"city": "Lima", "days": 1}]]
WEATHER = "It is sunny in Zürich and Lima."


def _call(name: str, arguments: dict[str, Any]) -> str:
    # Where a call must be made it is compact, so this is the spelling that a grammar lets through.
    written = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    return f'<tool_call>\n{{"name": "{name}", "arguments": {written}}}\n</tool_call>'


#: The first is said unless a question names another. Asked for a schema, the model would rather say no.
SCRIPTS = [
    "\n".join(_call(name, arguments) for name, arguments in CALLS),
    CHAT,
    "I would rather stay at home.",
    WEATHER,
    _call("Trip", TRIP),
]


def write_model(path: Path, scripts: list[str] | None = None) -> Path:
    """Write the model that says `SCRIPTS`, or others."""
    return write_scripted(path, randomly_cut(scripts or SCRIPTS), template=TEMPLATE)
