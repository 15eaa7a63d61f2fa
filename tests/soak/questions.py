"""Deterministic questions: asked again, each must get the same answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.servers import endless
from tests.soak.answers import Answer
from tests.tiny.gemma3 import TinyGemma3, tiny_gemma3_gguf
from tests.tiny.lfm2 import TinyLfm2, tiny_lfm2_gguf

#: Default context length in tokens, short enough that some answers exceed it.
CONTEXT = 256

#: Maximum number of requests a model processes in one batch.
PARALLEL = 4

#: Models besides the bundled one: one with sliding-window layers, one with recurrent states.
WINDOWED, RECURRENT = "windowed", "recurrent"
MODELS = ("demo", WINDOWED, RECURRENT)

#: A prefix shared by many prompts, which can reuse it from the cache.
_LONG_BEGINNING = (
    "Once upon a time there was a small fox who lived at the edge of a deep forest. Every morning the fox "
    "walked to the river to look at the fish, and every evening it walked home again. One day the fox met "
    "a wise old owl who knew many stories. "
)


def model_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the names and files of the models that are not bundled; their answers end only at a limit."""
    gemma3 = TinyGemma3(layers=4, window=24, pattern=2, context=CONTEXT, tied=False, seed=1)
    yield WINDOWED, tiny_gemma3_gguf(folder / "windowed.gguf", gemma3, model=endless(gemma3))
    lfm2 = TinyLfm2(context=CONTEXT, tied=False, seed=2)
    yield RECURRENT, tiny_lfm2_gguf(folder / "recurrent.gguf", lfm2, model=endless(lfm2))


@dataclass(frozen=True)
class Question:
    """A request with one right answer."""

    name: str
    path: str  # of the API
    fields: Mapping[str, Any] = field(hash=False)  # of the body

    @property
    def model(self) -> str:
        return str(self.fields["model"])

    @property
    def native(self) -> bool:
        return self.path.startswith("/api/")

    @property
    def fits(self) -> bool:
        """Whether prompt and answer fit the context, so that load options do not change the answer."""
        return not self.name.endswith(("-shift", "-truncated", "-full", "-long"))

    def body(self, *, stream: bool, **extra: Any) -> dict[str, Any]:
        """Return the request body; `options` in `extra` are merged into the question's own."""
        body = {**self.fields, "stream": stream, **extra}
        if "options" in extra:
            body["options"] = {**self.fields["options"], **extra["options"]}
        if stream and not self.native:
            body["stream_options"] = {"include_usage": True}
        return body


def all_questions() -> list[Question]:
    return [question for model in MODELS for question in _of(model)]


def follow_ups(answers: Mapping[Question, Answer]) -> list[Question]:
    """Return questions that continue some of the answered ones, token for token."""
    found = []
    for question, answer in answers.items():
        if question.name.endswith(("-short", "-sampled-1")):
            fields = {**question.fields, "prompt": "Go on.", "context": list(answer.ids)}
            fields["options"] = {**question.fields["options"], "num_predict": 24}
            found.append(Question(f"{question.name}-followed", question.path, fields))
    return found


def _of(model: str) -> Iterator[Question]:
    greedy = {"temperature": 0, "num_predict": 24}
    sampled = {"temperature": 0.9, "top_k": 30, "repeat_penalty": 1.1, "num_predict": 24}
    long = {"temperature": 0, "num_predict": 120}

    def generate(name: str, prompt: str, options: Mapping[str, Any], **extra: Any) -> Question:
        fields = {"model": model, "prompt": prompt, "options": options, **extra}
        return Question(f"{model}-{name}", "/api/generate", fields)

    def chat(name: str, messages: list[dict[str, str]], options: Mapping[str, Any]) -> Question:
        fields = {"model": model, "messages": messages, "options": options}
        return Question(f"{model}-{name}", "/api/chat", fields)

    def openai(name: str, path: str, **fields: Any) -> Question:
        return Question(f"{model}-{name}", path, {"model": model, "temperature": 0, **fields})

    yield generate("short", "Tell me a story about a fox.", long)
    yield generate("raw", "once upon a time", greedy, raw=True)
    for i, ending in enumerate(("The owl said:", "The fox asked:", "Then", "The end of")):
        yield generate(f"beginning-{i}", _LONG_BEGINNING[: 180 + 10 * i] + ending, greedy, raw=True)
    for seed in (1, 2):
        yield generate(f"sampled-{seed}", "Tell me a story about a bird.", {**sampled, "seed": seed})
    beyond = {"temperature": 0, "num_predict": 400, "seed": 5}
    yield generate("shift", "once upon a time", beyond, ignore_eos=True)
    yield generate("sampled-long", "hello", {**sampled, "num_predict": 400, "seed": 7})
    yield generate("full", "hello world", beyond, raw=True, shift=False, ignore_eos=True)
    yield generate("truncated", _LONG_BEGINNING * 8, {**greedy, "num_predict": 1}, raw=True)
    conversation: list[dict[str, str]] = []
    for turn, text in enumerate(("Hello!", "Who are you?", "What is 2 plus 3?", "Thank you.")):
        conversation = [*conversation, {"role": "user", "content": text}]
        yield chat(f"chat-{turn}", conversation, greedy)
        conversation = [*conversation, {"role": "assistant", "content": f"I see. Go on, {turn}."}]
    yield chat("chat-sampled", conversation[:3], {**sampled, "seed": 11})
    messages = [
        {"role": "system", "content": "Answer in one sentence."},
        {"role": "user", "content": "What colour is the sky?"},
    ]
    yield openai("openai-chat", "/v1/chat/completions", messages=messages, max_tokens=24)
    yield openai(
        "openai-chat-logprobs", "/v1/chat/completions", messages=messages, max_tokens=12, logprobs=True
    )
    yield openai("openai-text", "/v1/completions", prompt=_LONG_BEGINNING[:120], max_tokens=24)
    yield openai(
        "openai-text-sampled", "/v1/completions", prompt="Once", max_tokens=24, temperature=0.8, seed=3
    )
