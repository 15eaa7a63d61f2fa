"""A loaded model as a Python object."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn, Self, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from puna.chat.templates.author import Author
from puna.chat.templates.messages import Think
from puna.conversation.chat_model import ChatModel
from puna.library.completion import Completion, by_sample, stacked
from puna.library.options import RequestOptions
from puna.library.recordings import Audio, Transcript, TranscriptStream, recording_of, transcript_of
from puna.library.requests import (
    Messages,
    Prompt,
    Requests,
    Tools,
    checked_number,
    checked_prompt,
    checked_prompts,
    checked_tokens,
    is_one,
)
from puna.library.streams import (
    AsyncEvents,
    AsyncStream,
    AsyncToolStream,
    Events,
    Stream,
    ToolStream,
    rendered,
)
from puna.library.tools import MAX_ROUNDS, OnToolCall
from puna.protocol import Scored, TokenLogprob


class Model:
    """A loaded model. Use it as a context manager, or `close` it, to free its memory early.

    Methods that generate take `RequestOptions` as keyword arguments, and `logprobs=n` for the
    log-probability of each token and n alternatives. They raise `OptionError` and `RequestError` for wrong
    arguments, `ContextLengthError` for a prompt that is too long, and `GenerationError`.
    """

    def __init__(self, chat: ChatModel, author: Author) -> None:
        self.engine = chat.engine
        self.tokenizer = chat.engine.loaded.tokenizer
        self._chat = chat
        self._author = author
        self._requests = Requests(author)
        # Runs at interpreter exit too: no thread may wake up inside a kernel after that.
        self._closing = weakref.finalize(self, chat.close)

    def __repr__(self) -> str:
        engine = self.engine
        state = "" if self._closing.alive else ", closed"
        return (
            f"<puna.Model '{self._author.name}': {self._chat.architecture}, "
            f"{engine.weight_bytes / 1e6:.0f} MB, num_ctx {engine.context}, "
            f"parallel {engine.parallel}{state}>"
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a loaded model cannot be pickled or copied, so it cannot be passed to another process: pass its "
            "name, and call puna.load there"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop all generations and free the model."""
        self._closing()

    @overload
    def generate(
        self,
        prompt: Prompt,
        *,
        stream: Literal[False] = False,
        logprobs: int | None = None,
        **options: Unpack[RequestOptions],
    ) -> Completion: ...
    @overload
    def generate(
        self,
        prompt: Prompt,
        *,
        stream: Literal[True],
        logprobs: int | None = None,
        **options: Unpack[RequestOptions],
    ) -> Stream: ...
    def generate(
        self,
        prompt: Prompt,
        *,
        stream: bool = False,
        logprobs: int | None = None,
        **options: Unpack[RequestOptions],
    ) -> Completion | Stream:
        """Continue `prompt` (a text, or token ids used unchanged), without a template.

        `stream=True` returns a `Stream` of `Chunk`s; closing or dropping it stops the generation.
        """
        found = Stream(Events(self._chat, self._requests.prompt(prompt, logprobs, options)))
        return found if stream else found.completion()

    def generate_many(
        self,
        prompts: Sequence[Prompt],
        *,
        samples: int = 1,
        logprobs: int | None = None,
        **options: Unpack[RequestOptions],
    ) -> list[Completion]:
        """Continue several prompts at once, each `samples` times.

        Completions come in the order of the prompts, beginning with all samples of the first. Samples share
        the evaluation of their prompt; with a `seed`, sample i equals that of `generate` with seed + i.
        """
        requests = [
            self._requests.prompt(prompt, logprobs, options, samples)
            for prompt in checked_prompts(prompts, "generate_many", "generate()")
        ]
        with contextlib.ExitStack() as all_ended:
            submitted = [Events(self._chat, request) for request in requests]
            for events in submitted:
                all_ended.callback(events.close)
            return [completion for events in submitted for completion in by_sample(events, samples)]

    @overload
    def chat(
        self,
        messages: Messages,
        *,
        stream: Literal[False] = False,
        tools: Tools = (),
        tool_choice: str = "auto",
        max_tool_rounds: int = 0,
        on_tool_call: OnToolCall = None,
        think: Think | int = None,
        logprobs: int | None = None,
        **options: Unpack[RequestOptions],
    ) -> Completion: ...
    @overload
    def chat(
        self,
        messages: Messages,
        *,
        stream: Literal[True],
        tools: Tools = (),
        tool_choice: str = "auto",
        max_tool_rounds: int = 0,
        on_tool_call: OnToolCall = None,
        think: Think | int = None,
        logprobs: int | None = None,
        **options: Unpack[RequestOptions],
    ) -> Stream: ...
    def chat(
        self,
        messages: Messages,
        *,
        stream: bool = False,
        tools: Tools = (),
        tool_choice: str = "auto",
        max_tool_rounds: int = 0,
        on_tool_call: OnToolCall = None,
        think: Think | int = None,
        logprobs: int | None = None,
        **options: Unpack[RequestOptions],
    ) -> Completion | Stream:
        """Answer a conversation: [{"role": "user", "content": "Hi"}, ...], in the model's own chat format.

        The conversation starts with the model's own system message and messages, and the answer ends at the
        template's stop strings. If the conversation exceeds the context, its oldest messages are dropped.
        Models that think do so unless `think` is False; "low", "high" and so on set the effort, and a number
        is the most tokens of thinking. Thinking is kept apart from the text. Also raises `TemplateError`.

        The model may call `tools`: Python functions, described by their signatures and docstrings, or
        mappings ([{"type": "function", "function": {"name": "f", "description": "...",
        "parameters": {...}}}, ...], with parameters as a JSON schema). The answer holds them in `calls`. With
        `tool_choice` "required" or "function:NAME", the model must call one, and its calls are valid; with
        "none", it does not see the tools.

        With `max_tool_rounds`, calls are executed and their results given to the model, until it answers
        without a call or that many rounds are over; its last calls are then in `calls`. Tools are functions
        and `MCPServer`s. Before each call, `on_tool_call` gets it and may refuse it by returning False; calls
        of an MCP server that it does not `allow` run only on True. A call that fails is a result, which the
        model reads. The completion, or the stream, has all `messages` that continue the conversation. Also
        raises `MCPServerError`.
        """
        found: Stream
        if checked_number("max_tool_rounds", max_tool_rounds, 0, MAX_ROUNDS):
            rounds = self._requests.rounds(
                messages, tools, tool_choice, think, logprobs, options, max_tool_rounds, on_tool_call
            )
            found = ToolStream(self._chat, rounds)
        else:
            request = self._requests.chat(messages, tools, tool_choice, think, logprobs, options)
            found = Stream(Events(self._chat, request))
        return found if stream else found.completion()

    @overload
    def agenerate(
        self,
        prompt: Prompt,
        *,
        stream: Literal[False] = False,
        logprobs: int | None = None,
        **options: Unpack[RequestOptions],
    ) -> Coroutine[Any, Any, Completion]: ...
    @overload
    def agenerate(
        self,
        prompt: Prompt,
        *,
        stream: Literal[True],
        logprobs: int | None = None,
        **options: Unpack[RequestOptions],
    ) -> AsyncStream: ...
    def agenerate(
        self,
        prompt: Prompt,
        *,
        stream: bool = False,
        logprobs: int | None = None,
        **options: Unpack[RequestOptions],
    ) -> Coroutine[Any, Any, Completion] | AsyncStream:
        """Call `generate` from asyncio. Cancelling the task stops the generation."""
        found = AsyncStream(AsyncEvents(self._chat, self._requests.prompt(prompt, logprobs, options)))
        return found if stream else found.completion()

    @overload
    def achat(
        self,
        messages: Messages,
        *,
        stream: Literal[False] = False,
        tools: Tools = (),
        tool_choice: str = "auto",
        max_tool_rounds: int = 0,
        on_tool_call: OnToolCall = None,
        think: Think | int = None,
        logprobs: int | None = None,
        **options: Unpack[RequestOptions],
    ) -> Coroutine[Any, Any, Completion]: ...
    @overload
    def achat(
        self,
        messages: Messages,
        *,
        stream: Literal[True],
        tools: Tools = (),
        tool_choice: str = "auto",
        max_tool_rounds: int = 0,
        on_tool_call: OnToolCall = None,
        think: Think | int = None,
        logprobs: int | None = None,
        **options: Unpack[RequestOptions],
    ) -> AsyncStream: ...
    def achat(
        self,
        messages: Messages,
        *,
        stream: bool = False,
        tools: Tools = (),
        tool_choice: str = "auto",
        max_tool_rounds: int = 0,
        on_tool_call: OnToolCall = None,
        think: Think | int = None,
        logprobs: int | None = None,
        **options: Unpack[RequestOptions],
    ) -> Coroutine[Any, Any, Completion] | AsyncStream:
        """Call `chat` from asyncio. Cancelling the task stops the generation, and a call of an MCP server.

        With `max_tool_rounds`, tools and `on_tool_call` may be coroutine functions; other tools run in
        threads.
        """
        found: AsyncStream
        if checked_number("max_tool_rounds", max_tool_rounds, 0, MAX_ROUNDS):
            begin = partial(self._requests.rounds, messages, tools, tool_choice, think, logprobs, options)
            found = AsyncToolStream(self._chat, partial(begin, max_tool_rounds, on_tool_call))
        else:
            request = self._requests.chat(messages, tools, tool_choice, think, logprobs, options)
            found = AsyncStream(AsyncEvents(self._chat, request))
        return found if stream else found.completion()

    def render(self, messages: Messages, *, tools: Tools = (), think: Think | int = None) -> str:
        """Return the prompt text that `chat` makes of a conversation."""
        return rendered(self._chat, self._requests.chat(messages, tools, "auto", think, None, {})).text

    def score(self, prompt: Prompt, *, top_logprobs: int = 0) -> list[TokenLogprob | None]:
        """Return the log-probability of each token of `prompt`, given the tokens before it.

        The first token has none (None), unless the model starts every text with a BOS token. Raises
        `ContextLengthError` when the prompt is longer than the context.
        """
        request = self._requests.score(prompt, top_logprobs)
        scored = (event for event in Events(self._chat, request) if isinstance(event, Scored))
        return [logprob for event in scored for logprob in event.logprobs]

    def tokenize(self, text: str, *, add_special: bool = True) -> list[int]:
        """Return the token ids of `text`, in which control tokens are recognised.

        `add_special` adds the BOS and EOS tokens the model expects around a text.
        """
        return self.tokenizer.encode(text, add_special=add_special)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids. Raises `RequestError` for ids outside the vocabulary."""
        return self.tokenizer.decode(checked_tokens(tokens))

    def embed(
        self,
        inputs: Prompt | Sequence[Prompt],
        *,
        normalize: bool = True,
        dimensions: int | None = None,
        truncate: bool = True,
        pooling: Literal["mean", "cls", "last"] | None = None,
        lora: Mapping[str, float] | None = None,
    ) -> NDArray[np.float32]:
        """Return the vector [size] of a text (or its token ids), or vectors [inputs, size] of a list.

        Vectors have length 1 unless `normalize` is False, and are cut to their first `dimensions` values if
        given. A text longer than the context is cut at its end, or raises `ContextLengthError` with
        `truncate=False`. `pooling` chooses the hidden states that make up a vector: all ("mean"), the first
        ("cls") or the last ("last"); by default those the model was trained for, else the last. `lora` maps
        adapters to scales, as in `RequestOptions`. Raises `UnavailableError` for a model that cannot embed.
        """
        request = self._requests.embed(inputs, normalize, dimensions, truncate, pooling, lora)
        return stacked(list(Events(self._chat, request)), is_one(inputs))

    async def aembed(
        self,
        inputs: Prompt | Sequence[Prompt],
        *,
        normalize: bool = True,
        dimensions: int | None = None,
        truncate: bool = True,
        pooling: Literal["mean", "cls", "last"] | None = None,
        lora: Mapping[str, float] | None = None,
    ) -> NDArray[np.float32]:
        """Call `embed` from asyncio. Cancelling the task stops the work."""
        request = self._requests.embed(inputs, normalize, dimensions, truncate, pooling, lora)
        return stacked([event async for event in AsyncEvents(self._chat, request)], is_one(inputs))

    @overload
    def transcribe(
        self,
        audio: Audio,
        *,
        stream: Literal[False] = False,
        language: str | None = None,
        translate: bool = False,
        prompt: str = "",
        temperature: float = 0.0,
        seed: int = 0,
        word_timestamps: bool = False,
    ) -> Transcript: ...
    @overload
    def transcribe(
        self,
        audio: Audio,
        *,
        stream: Literal[True],
        language: str | None = None,
        translate: bool = False,
        prompt: str = "",
        temperature: float = 0.0,
        seed: int = 0,
        word_timestamps: bool = False,
    ) -> TranscriptStream: ...
    def transcribe(
        self,
        audio: Audio,
        *,
        stream: bool = False,
        language: str | None = None,
        translate: bool = False,
        prompt: str = "",
        temperature: float = 0.0,
        seed: int = 0,
        word_timestamps: bool = False,
    ) -> Transcript | TranscriptStream:
        """Write down what is said in a recording, with times. For models that transcribe, as Whisper.

        `audio` is the path of a WAV, FLAC, OGG or MP3 file, its bytes, or an array of samples: floats from -1
        to 1, or int16, of one channel and 16,000 a second.
        `language` is the code or English name of the language that is spoken, which is detected by default;
        `translate` writes English whatever is spoken. `prompt` is text that could precede the recording, for
        the spelling of names. With a `temperature` of 0, a part whose text looks wrong is read again at
        higher temperatures, with random numbers by `seed`. With `word_timestamps`, segments have `words`.

        `stream=True` returns a `TranscriptStream` of `Segment`s; closing or dropping it stops the work. Also
        raises `AudioError`, and `UnavailableError` for a model that does not transcribe.
        """
        recording = recording_of(audio)
        request = self._requests.transcribe(
            recording, language, translate, prompt, temperature, seed, word_timestamps
        )
        found = TranscriptStream(Events(self._chat, request), recording.seconds)
        return found if stream else found.transcript()

    async def atranscribe(
        self,
        audio: Audio,
        *,
        language: str | None = None,
        translate: bool = False,
        prompt: str = "",
        temperature: float = 0.0,
        seed: int = 0,
        word_timestamps: bool = False,
    ) -> Transcript:
        """Call `transcribe` from asyncio. Cancelling the task stops the work."""
        recording = await asyncio.to_thread(recording_of, audio)
        request = self._requests.transcribe(
            recording, language, translate, prompt, temperature, seed, word_timestamps
        )
        return transcript_of([event async for event in AsyncEvents(self._chat, request)])

    def save_prompt(self, prompt: Prompt, path: str | Path) -> None:
        """Evaluate `prompt`, unless it is cached, and write its part of the cache to `path`.

        Another process can continue from there with `load_prompt`. Raises `ContextLengthError` when the
        prompt is longer than the context, `CacheFullError` when running requests leave no room for it, and
        `OSError`.
        """
        given = checked_prompt(prompt)
        tokens = self.tokenizer.encode(given) if isinstance(given, str) else given
        list(Events(self._chat, self._requests.evaluate(tokens)))
        self.engine.save_prompt(tokens, path)

    def load_prompt(self, path: str | Path) -> list[int]:
        """Add the prompt that `save_prompt` wrote to `path` to the prefix cache, and return its tokens.

        Requests that start with them evaluate only the rest. Raises `CacheFileError` when the file is damaged
        or belongs to another model or `kv_cache_type`, `ContextLengthError` when it is longer than the
        context, `CacheFullError` when running requests leave no room, and `FileNotFoundError`.
        """
        self._chat.refuse_after_fork()
        return self.engine.load_prompt(path)
