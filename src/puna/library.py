"""Puna as a library: the same engine, in this process.

    import puna

    model = puna.load("demo")
    print(model.generate("Once upon a time", num_predict=50).text)
    for piece in model.chat([{"role": "user", "content": "Hi!"}], stream=True):
        print(piece.text, end="", flush=True)

Requests made at the same time (from threads, tasks, or as a list of prompts) run in one batch.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, cast, get_args, overload

import msgspec.structs
import numpy as np
from numpy.typing import NDArray

from puna import ops
from puna.completions import Completion, by_sample, chunks, complete, gather, stacked
from puna.conversation.chat_model import ChatModel
from puna.engine.engine import Engine
from puna.engine.events import (
    Chunk,
    Done,
    Embed,
    Generate,
    Priority,
    Scored,
    TokenLogprob,
)
from puna.engine.prompt_files import load_prompt, save_prompt
from puna.errors import RequestError
from puna.gguf import open_gguf
from puna.kvcache.types import KVTypes
from puna.model.load import load_model
from puna.options import Options, speculate_from_env
from puna.prompt.author import Author
from puna.prompt.capabilities import capabilities, check_capabilities
from puna.prompt.format import Think
from puna.prompt.messages import Chat, as_messages
from puna.prompt.model_facts import read_facts
from puna.store import Store, StoredModel
from puna.streams import asubmitted, submitted

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]


def load(
    model: str | Path,
    *,
    num_ctx: int | None = None,
    parallel: int = 8,
    num_thread: int = 0,
    kv_cache_type: str | None = None,
    draft: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Model:
    """Load a model by name (`demo`, or any in the store) or by the path of a GGUF file.

    `num_ctx` tokens of context for each of up to `parallel` requests at once; by default as the stored model
    says, else what the model was trained for, as far as memory goes. They are kept as `kv_cache_type`
    (f16, q8_0, q4_0, bf16, f32, or two of them for keys and values: "q8_0,q4_0"; by default what
    `PUNA_KV_CACHE_TYPE` says, else f16). A small model of the same family as `draft` guesses what this one
    will say, which makes it faster and changes no answer. Raises
    `ModelNotFoundError`, `GGUFError`, `UnsupportedModelError`, `InsufficientMemoryError`, ...
    """
    path, stored = _find(model)
    chosen = Options.merge(stored.params if stored is not None else None)
    context = num_ctx or chosen.num_ctx
    draft = draft or chosen.draft
    ops.set_threads(num_thread)
    with open_gguf(path) as file:
        if context is not None:
            context = min(context, file.get("context_length") or context)
        facts = read_facts(file)
    types = KVTypes.from_env() if kv_cache_type is None else KVTypes.parse(kv_cache_type)
    loaded = load_model(
        path,
        context=context or 0,
        parallel=parallel,
        cache_types=types,
        draft=_find(draft)[0] if draft else None,
        progress=progress,
    )
    engine = Engine(
        loaded, context=context, parallel=parallel, cache_types=types, speculate=speculate_from_env()
    )
    engine.start()
    return Model(ChatModel(engine, facts), stored)


def _find(model: str | Path) -> tuple[Path, StoredModel | None]:
    """The file of a model, and what the store knows of it if it was named."""
    if isinstance(model, Path) or model.endswith(".gguf"):
        return Path(model), None
    stored = Store().get(model)
    return stored.runnable_path(), stored


class Model:
    """A loaded model. Use it as a context manager, or `close` it, to give its memory back early."""

    def __init__(self, chat: ChatModel, stored: StoredModel | None = None) -> None:
        self.engine = chat.engine
        self.tokenizer = chat.engine.loaded.tokenizer
        self._chat = chat
        self._stored = stored
        self._defaults = dict(stored.params) if stored is not None else {}
        self._ids = itertools.count(1)
        # Also when the interpreter exits: a thread must not wake up inside a kernel after that.
        self._closing = weakref.finalize(self, self.engine.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop all generations and free the model."""
        self._closing()

    @cached_property
    def _author(self) -> Author:
        """What there is to know before a chat; looked up then, as it takes reading the template."""
        if self._stored is not None:
            return Author.of(self._stored)
        return Author(self.engine.loaded.path.name, capabilities(self._chat.facts))

    # --- text in, text out -------------------------------------------------------------

    @overload
    def generate(
        self, prompt: Prompt, *, stream: Literal[False] = False, logprobs: int | None = None, **options: Any
    ) -> Completion: ...
    @overload
    def generate(
        self, prompt: Prompt, *, stream: Literal[True], logprobs: int | None = None, **options: Any
    ) -> Iterator[Chunk]: ...
    def generate(
        self, prompt: Prompt, *, stream: bool = False, logprobs: int | None = None, **options: Any
    ) -> Completion | Iterator[Chunk]:
        """Continue `prompt` (text, or token ids taken as they are).

        `stream=True` gives an iterator of `Chunk`s as text becomes final; leaving it early stops the
        generation. `logprobs=n` adds log-probabilities with n alternatives each. `options` are
        Ollama's: temperature, seed, num_predict, stop, ...; and two that say how the request is
        treated: `cache_prompt=False` takes nothing from earlier requests and leaves nothing behind for
        later ones, `priority="batch"` takes what interactive requests leave. All methods that generate
        know them. Raises `OptionError`, `RequestError`, `ContextLengthError`, `GenerationError`.
        """
        events = submitted(self._chat, self._request(prompt, logprobs, options))
        return chunks(events) if stream else complete(events)

    def generate_many(
        self, prompts: Sequence[Prompt], *, samples: int = 1, logprobs: int | None = None, **options: Any
    ) -> list[Completion]:
        """Continue several prompts at once, each `samples` times.

        The completions come in the order of the prompts, all of the first one first. Samples share the
        evaluation of their prompt; with a `seed`, sample i is what `generate` gives with seed + i.
        """
        requests = [self._request(prompt, logprobs, options, samples) for prompt in prompts]
        started = [submitted(self._chat, request) for request in requests]
        return [completion for events in started for completion in by_sample(list(events), samples)]

    @overload
    def chat(
        self,
        messages: Messages,
        *,
        stream: Literal[False] = False,
        tools: Tools = (),
        think: Think = None,
        logprobs: int | None = None,
        **options: Any,
    ) -> Completion: ...
    @overload
    def chat(
        self,
        messages: Messages,
        *,
        stream: Literal[True],
        tools: Tools = (),
        think: Think = None,
        logprobs: int | None = None,
        **options: Any,
    ) -> Iterator[Chunk]: ...
    def chat(
        self,
        messages: Messages,
        *,
        stream: bool = False,
        tools: Tools = (),
        think: Think = None,
        logprobs: int | None = None,
        **options: Any,
    ) -> Completion | Iterator[Chunk]:
        """Answer a conversation: [{"role": "user", "content": "Hi"}, ...], in the model's own chat format.

        It begins with the model's own system text and messages, and ends at its template's stop strings. When
        it does not fit the context, the oldest messages are left out. A model that thinks does so unless
        `think` is False (or as hard as `think` says), and its thinking is told from its text. Raises what
        `generate` does, and `TemplateError`.
        """
        events = submitted(self._chat, self._chat_request(messages, tools, think, logprobs, options))
        return chunks(events) if stream else complete(events)

    async def agenerate(self, prompt: Prompt, *, logprobs: int | None = None, **options: Any) -> Completion:
        """`generate`, for asyncio. Cancelling the task stops the generation."""
        return await gather(self.astream(prompt, logprobs=logprobs, **options))

    async def achat(
        self,
        messages: Messages,
        *,
        tools: Tools = (),
        think: Think = None,
        logprobs: int | None = None,
        **options: Any,
    ) -> Completion:
        """`chat`, for asyncio."""
        return await gather(self._astream(self._chat_request(messages, tools, think, logprobs, options)))

    async def astream(
        self, prompt: Prompt, *, logprobs: int | None = None, **options: Any
    ) -> AsyncIterator[Chunk | Done]:
        """`Chunk`s as text becomes final, then `Done`, for asyncio."""
        async with aclosing(self._astream(self._request(prompt, logprobs, options))) as events:
            async for event in events:
                yield event

    def score(self, prompt: Prompt, *, top_logprobs: int = 0) -> list[TokenLogprob | None]:
        """How likely the model finds each token of `prompt` after those before it.

        The first token comes after nothing: None, unless the model begins every text with a token of its own.
        Raises `ContextLengthError` when the text is longer than the context.
        """
        request = Generate(
            id=next(self._ids),
            prompt=prompt if isinstance(prompt, str) else list(prompt),
            options=Options(num_predict=0),
            truncate=False,
            prompt_logprobs=True,
            top_logprobs=top_logprobs,
        )
        found: list[TokenLogprob | None] = []
        for event in submitted(self._chat, request):
            if isinstance(event, Scored):
                found += event.logprobs
        return found

    def embed(
        self,
        inputs: Prompt | Sequence[Prompt],
        *,
        normalize: bool = True,
        dimensions: int | None = None,
        truncate: bool = True,
        pooling: Literal["mean", "cls", "last"] | None = None,
    ) -> NDArray[np.float32]:
        """The vector [size] of a text (or of token ids), or those [inputs, size] of a list of them.

        Vectors are of length 1, unless `normalize` is False, and have the first `dimensions` values only, if
        that is given. Of a text longer than the context the beginning counts, or with `truncate=False`
        `ContextLengthError` is raised. `pooling` says of which of the model's hidden states a vector is made,
        by default those it was trained for: all ("mean"), the first ("cls") or the last one, which is also
        what a model that was trained for none is asked for. Raises `UnavailableError` for a reranker.
        """
        request = self._embed_request(inputs, normalize, dimensions, truncate, pooling)
        return stacked(list(submitted(self._chat, request)), _is_one(inputs))

    async def aembed(
        self,
        inputs: Prompt | Sequence[Prompt],
        *,
        normalize: bool = True,
        dimensions: int | None = None,
        truncate: bool = True,
        pooling: Literal["mean", "cls", "last"] | None = None,
    ) -> NDArray[np.float32]:
        """`embed`, for asyncio. Cancelling the task stops the work."""
        request = self._embed_request(inputs, normalize, dimensions, truncate, pooling)
        async with aclosing(asubmitted(self._chat, request)) as events:
            return stacked([event async for event in events], _is_one(inputs))

    def save_prompt(self, prompt: Prompt, path: str | Path) -> None:
        """Write what the model remembers after reading `prompt` (which it does first, if need be) to `path`.

        With `load_prompt` another process goes on from there at once. Raises `ContextLengthError` when the
        prompt is longer than the context, `CacheFullError` when running requests leave no room to keep it,
        `OSError`.
        """
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        request = Generate(
            id=next(self._ids), prompt=tokens, options=Options(num_predict=1), truncate=False, ignore_eos=True
        )
        list(submitted(self._chat, request))
        save_prompt(self.engine, tokens, path)

    def load_prompt(self, path: str | Path) -> list[int]:
        """Remember what `save_prompt` wrote to `path`, and return its tokens.

        A request that begins with them evaluates only what follows. Raises `CacheFileError` when the file is
        damaged, or of another model or `kv_cache_type`, `ContextLengthError` when it is longer than the
        context, `CacheFullError` when running requests leave no room, `FileNotFoundError`.
        """
        return load_prompt(self.engine, path)

    def render(self, messages: Messages, *, tools: Tools = (), think: Think = None) -> str:
        """The prompt text of a conversation, as `chat` makes it."""
        return self._chat.render(self._chat_request(messages, tools, think, None, {})).text

    # --- inside ------------------------------------------------------------------------

    def _request(
        self, prompt: Prompt, logprobs: int | None, options: Mapping[str, Any], samples: int = 1
    ) -> Generate:
        """A request to continue `prompt` as it stands: without a template, and without its stop strings."""
        given = prompt if isinstance(prompt, str) else list(prompt)
        request = self._asked(given, logprobs, {"stop": []} | self._defaults, options)
        return msgspec.structs.replace(request, samples=samples)

    def _chat_request(
        self,
        messages: Messages,
        tools: Tools,
        think: Think,
        logprobs: int | None,
        options: Mapping[str, Any],
    ) -> Generate:
        author = self._author
        check_capabilities(author.name, author.capabilities, ["tools"] if tools else [])
        chat = author.opened(Chat(messages=as_messages(messages), tools=[dict(tool) for tool in tools]))
        request = self._asked(chat, logprobs, self._defaults, options)
        return msgspec.structs.replace(request, template=author.template, think=author.think(think))

    def _asked(
        self,
        prompt: str | list[int] | Chat,
        logprobs: int | None,
        defaults: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> Generate:
        treatment: dict[str, Any] = {"cache_prompt": True, "priority": "interactive"}
        treatment |= {name: options[name] for name in treatment if name in options}
        unknown = [name for name in Options.unknown(options) if name not in treatment]
        if unknown:
            raise RequestError(f"unknown option: {', '.join(unknown)}")
        if treatment["priority"] not in get_args(Priority):
            allowed = " or ".join(repr(name) for name in get_args(Priority))
            raise RequestError(f"priority must be {allowed}, not {treatment['priority']!r}")
        return Generate(
            id=next(self._ids),
            prompt=prompt,
            options=Options.merge(defaults, options),
            logprobs=logprobs is not None,
            top_logprobs=logprobs or 0,
            cache_prompt=bool(treatment["cache_prompt"]),
            priority=treatment["priority"],
        )

    def _embed_request(
        self,
        inputs: Prompt | Sequence[Prompt],
        normalize: bool,
        dimensions: int | None,
        truncate: bool,
        pooling: str | None,
    ) -> Embed:
        prompts = cast(Sequence[Prompt], [inputs] if _is_one(inputs) else inputs)
        return Embed(
            id=next(self._ids),
            inputs=[prompt if isinstance(prompt, str) else list(prompt) for prompt in prompts],
            normalize=normalize,
            dimensions=dimensions or 0,
            truncate=truncate,
            pooling=pooling,
        )

    async def _astream(self, request: Generate) -> AsyncGenerator[Chunk | Done, None]:
        async with aclosing(asubmitted(self._chat, request)) as events:
            async for event in events:
                if isinstance(event, Chunk | Done):
                    yield event


def _is_one(inputs: Prompt | Sequence[Prompt]) -> bool:
    """Whether that is one text, or the tokens of one."""
    return isinstance(inputs, str) or (len(inputs) > 0 and isinstance(inputs[0], int))
