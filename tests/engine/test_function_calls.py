"""Forced calls of the Berkeley Function-Calling data's functions are valid, whatever a random model says.

Each function is forced in one of the formats of calls.

The data is not ours to keep; `pip install --no-deps bfcl-eval` installs it.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from puna.chat.answers.family import Reading
from puna.chat.answers.registry import FAMILIES
from puna.chat.answers.tools import Tool
from puna.engine.requests import FittedPrompt
from puna.errors import RequestError
from puna.model.load import load_model
from puna.options import Options
from puna.protocol import CallDelta, Chunk, Done, Generate
from tests.engine.runs import Run
from tests.tiny.llama import WORDS, TinyLlama, tiny_llama_gguf

#: The data's names of types that are not JSON Schema's.
TYPES = {
    **dict.fromkeys(("float", "double"), "number"),
    **dict.fromkeys(("integer", "byte", "short", "long", "Bigint"), "integer"),
    **dict.fromkeys(("bool", "boolean", "Boolean"), "boolean"),
    **dict.fromkeys(("list", "tuple", "array", "ArrayList", "Array", "Queue", "Stack"), "array"),
    **dict.fromkeys(("dict", "object", "HashMap", "Hashtable"), "object"),
    **dict.fromkeys(("any", "Any", "char", "String"), "string"),
}
#: JSON, and parameters with their own markup: the tags that end a value, each of which is one token.
WAYS: dict[str, tuple[str, ...]] = {
    "hermes": (),
    "qwen3-coder": ("\n</parameter>\n", "</parameter>"),
    "glm": ("</arg_value>",),
}
STREAMS = 8


def functions() -> list[Tool]:
    """Return every function once."""
    found = importlib.util.find_spec("bfcl_eval")
    if found is None or found.origin is None:
        pytest.skip("bfcl-eval is not installed (pip install --no-deps bfcl-eval)")
    listed: dict[str, Tool] = {}
    data = Path(found.origin).parent / "data"
    for path in sorted([*data.glob("BFCL_*.json"), *data.glob("multi_turn_func_doc/*.json")]):
        if path.stem.endswith("format_sensitivity"):  # lists of names
            continue
        for line in path.read_text().splitlines():
            for function in _functions(json.loads(line)):
                schema = converted(function["parameters"])
                listed.setdefault(json.dumps(schema), Tool(function["name"], schema))
    assert len(listed) > 1000
    return list(listed.values())


def _functions(record: Any) -> Iterator[dict[str, Any]]:
    yield from (record,) if "parameters" in record else record.get("function", ())


def converted(schema: Any) -> Any:
    """Return a schema of the data with JSON Schema's types."""
    if not isinstance(schema, dict):
        return schema
    made = {key: converted(value) if isinstance(value, dict) else value for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict):
        made["properties"] = {name: converted(value) for name, value in schema["properties"].items()}
    if isinstance(kind := schema.get("type"), str):
        made["type"] = TYPES.get(kind, kind)
    return made


@pytest.mark.thorough
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("way", WAYS)
def test_every_function_is_called_validly(tmp_path: Path, way: str) -> None:
    tools = functions()[[*WAYS].index(way) :: len(WAYS)]
    config = TinyLlama(layers=1, context=1024, words=(*WORDS, *WAYS[way]))
    tiny = load_model(tiny_llama_gguf(tmp_path / "tiny.gguf", config))
    run = Run(tiny, parallel=STREAMS, context=1024)
    pieces = [tiny.tokenizer.piece(token) for token in range(tiny.tokenizer.vocab_size)]
    ends = {tag.encode(): 11.0 for tag in WAYS[way]}
    closing = [
        (token, ends.get(piece, 8.0))
        for token, piece in enumerate(pieces)
        if piece in ends or (len(piece) == 1 and piece in b'"}]<>\n')
    ]
    options = Options(temperature=1.5, top_k=0, top_p=1.0, num_predict=250, logit_bias=tuple(closing))
    refused: list[str] = []
    for number, tool in enumerate(tools):
        reading = Reading(FAMILIES[way], tools={tool.name: tool}, choice="required", parallel=False)
        request = Generate(id=number, prompt=[1], options=options)
        try:
            run.engine.submit(request, run.events[number].append, FittedPrompt([1], reading=reading))
        except RequestError as error:  # some of the data's schemas have no value
            refused.append(str(error))
    while run.engine.step():
        pass
    assert all("#" in reason for reason in refused)
    assert len(refused) < 0.01 * len(tools), refused
    ended = 0
    for number, events in run.events.items():
        if not events:
            continue
        tool, end = tools[number], events[-1]
        assert isinstance(end, Done), (tool.name, end, tool.parameters)
        if end.reason == "length":
            continue
        ended += 1
        deltas = [call for event in events if isinstance(event, Chunk) for call in event.calls]
        assert [delta.name for delta in deltas if delta.name] == [tool.name]
        arguments = "".join(delta.arguments for delta in deltas if isinstance(delta, CallDelta))
        jsonschema.validate(json.loads(arguments), tool.parameters)
    assert ended > 0.8 * len(tools)
