"""Questions with one right answer each, whatever happens to nodes while it is given."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.cluster.conftest import SCRIPTS
from tests.cluster.test_answers import SEEDED, endless, merged, scripted
from tests.e2e.servers import Server, add_model
from tests.e2e.servers import endless as endless_model
from tests.e2e.test_demo_vision import two_shapes
from tests.e2e.tools import calling
from tests.scripted import randomly_cut, trigger, write_scripted
from tests.soak.asking import check, replies
from tests.tiny.llama import TinyLlama, tiny_llama_gguf

#: Context of all models, so that no request has one loaded again.
CONTEXT = 8192

_LENGTH = {"num_predict": 1500}


@dataclass(frozen=True)
class Question:
    """A request that is answered by a single object, or by a stream."""

    name: str
    path: str  # of the API
    body: Mapping[str, Any] = field(hash=False)

    @property
    def model(self) -> str:
        return str(self.body["model"])

    @property
    def streams(self) -> bool:
        return self.path != "/api/embed"

    def parts(self, http: httpx.Client, *, stream: bool) -> Iterator[dict[str, Any]]:
        """Yield the objects of the answer as they arrive. Raises RefusedError."""
        body = {**self.body, "stream": stream} if self.streams else dict(self.body)
        if stream and self.path.startswith("/v1/"):
            body["stream_options"] = {"include_usage": True}
        if stream:
            with http.stream("POST", self.path, json=body) as response:
                yield from replies(response)
        else:
            response = http.post(self.path, json=body)
            check(response)
            yield response.json()


def whole(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what a client has in the end, however the answer was cut."""
    if "embeddings" in parts[0]:
        return {name: parts[0][name] for name in ("embeddings", "prompt_eval_count")}
    if "choices" not in parts[0]:
        return merged(list(parts))
    choices: dict[int, dict[str, Any]] = {}
    for choice in (choice for part in parts for choice in part["choices"]):
        found = choices.setdefault(choice["index"], {"text": "", "thinking": "", "calls": {}, "ends": []})
        given = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
        found["text"] += given.get("content") or ""
        found["thinking"] += given.get("reasoning") or given.get("reasoning_content") or ""
        for number, call in enumerate(given.get("tool_calls") or ()):
            name, arguments = found["calls"].get(call.get("index", number), ("", ""))
            more = call["function"]
            found["calls"][call.get("index", number)] = (
                name + (more.get("name") or ""),
                arguments + (more.get("arguments") or ""),
            )
        if choice.get("finish_reason"):
            found["ends"].append(choice["finish_reason"])
    usage = [part["usage"] for part in parts if part.get("usage")]
    counts = [(each["prompt_tokens"], each["completion_tokens"]) for each in usage]
    return {"choices": choices, "usage": counts}


def add_models(server: Server, folder: Path) -> None:
    """Create the models that are not bundled."""
    config = TinyLlama(context=CONTEXT, seed=3)
    path = tiny_llama_gguf(folder / "endless.gguf", config, model=endless_model(config))
    add_model(server, "endless", path)
    scripts = randomly_cut(SCRIPTS)
    path = write_scripted(folder / "scripted.gguf", scripts, template=calling.TEMPLATE)
    add_model(server, "scripted", path)


def all_questions() -> list[Question]:
    return [*_native(), *_openai()]


def _native() -> Iterator[Question]:
    def generate(name: str, **fields: Any) -> Question:
        options = SEEDED | _LENGTH | fields.pop("options", {})
        return Question(name, "/api/generate", endless(options=options, **fields))

    yield generate("greedy", options={"temperature": 0})
    for seed in range(3):
        yield generate(f"sampled-{seed}", options={"seed": seed})
    yield generate("mirostat", options={"mirostat": 2}, logprobs=True, top_logprobs=2)
    array = {"type": "array", "items": {"type": "integer"}, "minItems": 300}
    yield generate("format", format=array)
    for length in (200, 2000):
        prompt = "The fox went on and on. " * (length // 8)
        yield generate(f"prompt-{length}", prompt=prompt, options={"num_predict": 300})
    yield Question("thinking", "/api/chat", scripted(1, think=True))
    yield Question("call", "/api/chat", scripted(2, tools=calling.TOOLS))
    conversation: list[dict[str, str]] = []
    for turn, text in enumerate(("Tell me a long story. " * 20, "Go on.", "And then?")):
        conversation = [*conversation, {"role": "user", "content": text}]
        options = {"seed": turn, "num_predict": 60}
        yield Question(
            f"chat-{turn}", "/api/chat", {"model": "demo", "messages": conversation, "options": options}
        )
        conversation = [*conversation, {"role": "assistant", "content": f"I see, {turn}."}]
    picture = base64.b64encode(two_shapes()).decode()
    body = {"model": "demo-vision", "prompt": "What is in the picture?", "images": [picture]}
    options = SEEDED | {"num_predict": 200}
    yield Question("picture", "/api/generate", {**body, "options": options, "ignore_eos": True})
    yield Question("embed", "/api/embed", {"model": "demo", "input": ["a fox", "an owl", "a river"]})


def _openai() -> Iterator[Question]:
    messages = [{"role": "user", "content": trigger(2)}]
    body = {"model": "scripted", "messages": messages, "tools": calling.TOOLS, "temperature": 0}
    yield Question("openai-call", "/v1/chat/completions", body)
    messages = [{"role": "user", "content": trigger(1)}]
    body = {"model": "scripted", "messages": messages, "temperature": 0}
    yield Question("openai-thinking", "/v1/chat/completions", body)
    for samples in (1, 3):
        body = {"model": "endless", "prompt": "Go on.", "n": samples, "max_tokens": 600, "seed": 3}
        yield Question(f"openai-samples-{samples}", "/v1/completions", {**body, "ignore_eos": True})
