"""A loaded model together with its chat templates, for the runner and the library alike."""

from __future__ import annotations

import hashlib
import logging
import os
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Final

import msgspec
import numpy as np

from puna.audio.formats import is_audio
from puna.batch import Image, Input, WindowedRecording
from puna.chat.answers.family import Reading
from puna.chat.answers.registry import PARSERS, family_by
from puna.chat.answers.tools import tools_of
from puna.chat.templates.choose import ChatTemplate, chat_template
from puna.chat.templates.messages import Chat, Insert, Message, Think, Traits, tag, tagged
from puna.chat.templates.model_facts import ModelFacts
from puna.chat.templates.renderer.client import Renderer, Rendering
from puna.chat.templates.tool_order import ordered
from puna.conversation.fit import fit_chat, newest, size
from puna.conversation.infill import infill_tokens
from puna.conversation.pictures import Pictures
from puna.conversation.prefixes import PrefixWatch
from puna.conversation.transcription import Transcriber, failure
from puna.engine.engine import Engine
from puna.engine.requests import FittedPrompt, check_size, checked, max_text, read_text, text_size, tokenised
from puna.engine.sequence import Sink, key_of
from puna.errors import ContextLengthError, PunaError, RequestError, RunnerError, UnavailableError
from puna.protocol import (
    BrokenPrefix,
    Detokenize,
    Detokenized,
    Embed,
    Failed,
    Generate,
    Infill,
    Mixed,
    Prompted,
    Tokenize,
    Tokenized,
    Transcribe,
)
from puna.turns import PartQueue, RenderQueue

log = logging.getLogger("puna.conversation")

#: Request id for reading the traits of the model's own template.
_NOBODY = -1

#: Stands for the first message in prompts that show what precedes it.
_PROBE: Final = "probe asks"

#: Formats compiled at the same time, each in its own process.
_MAX_COMPILED = 4

#: Resolved templates kept with their digests; a model has one, more only come with requests.
_KEPT_TEMPLATES = 8


def reading_of(request: Generate, traits: Traits, architecture: str, prompt: str) -> Reading | None:
    """Return how answers to `prompt` are read; None if they are plain text.

    `traits` describe the request's template. The request's own `parser` takes precedence if it is known.
    """
    named = PARSERS.get(request.parser)
    family = family_by(request.parser, traits.family, architecture, traits.call_tags)
    chat = request.prompt if isinstance(request.prompt, Chat) else None
    if chat is None and not request.think:
        return None
    calls = chat is not None and chat.tool_choice != "none" and (named is None or named.calls)
    tools = tools_of(chat.tools) if chat is not None and chat.tools and calls else {}
    asked = bool(family.thinking or request.think or (named is not None and named.always_splits))
    thinking = family.thinking or (named.thinking if named else None) or traits.thinking_tags
    # A format may itself ask for something that looks like a call.
    unmarks = chat is not None and not tools and family.calls is not None and request.format is None
    if thinking is None and not tools and not family.dropped and not unmarks:
        return None
    continues = chat is not None and bool(chat.messages) and chat.messages[-1].role == "assistant"
    begins = named is not None and not continues and named.begins_thinking(bool(request.think), bool(tools))
    return Reading(
        family,
        thinking=thinking,
        prompt=prompt,
        tools=tools,
        streams_calls=request.stream_calls,
        begins_thinking=begins,
        asked=asked,
        unmarks_calls=unmarks,
        choice=chat.tool_choice if chat and tools else "auto",
        parallel=chat is None or chat.parallel_tool_calls,
        strict=chat is not None and chat.strict_tools,
    )


#: The images and recordings of a request.
Shown = list[Image | WindowedRecording]


@dataclass(frozen=True)
class _Read:
    """A text as the model's input; `inputs` is set if it contains images."""

    tokens: list[int]
    inputs: list[Input] | None = None

    def after(self, context: list[int]) -> _Read:
        """Return the input with the tokens of `context` before it."""
        if not context:
            return self
        inputs = None if self.inputs is None else [*map(Input, context), *self.inputs]
        return _Read([*context, *self.tokens], inputs)


#: By level: the share of the tokens that an answer may have, and the least number of tokens. Other levels,
#: and thinking without a level, have no limit. docs/api.md has this table.
SHARES: Final = {"low": (1 / 8, 128), "medium": (1 / 4, 256), "high": (1 / 2, 512)}


def thinking_budget(request: Generate, traits: Traits, context: int) -> int | None:
    """Return the maximum tokens of thinking in an answer within `context` tokens; None for any number.

    A level sets no limit where the template itself tells it to the model.
    """
    if request.think_budget is not None:
        return request.think_budget
    if not isinstance(request.think, str) or request.think not in SHARES or traits.takes_levels:
        return None
    share, least = SHARES[request.think]
    wanted = request.options.num_predict
    most = min(wanted, context) if wanted > 0 else context
    return max(int(most * share), least)


def _before_last(rendering: Rendering, messages: Sequence[Message]) -> str:
    """Return the prompt without its last message; "" if there is none, or the template wants that message."""
    if len(messages) < 2:
        return ""
    try:
        return rendering.text_before_last()
    except PunaError:
        return ""


def _check_shown(messages: Sequence[Message], text: str) -> None:
    """Raise RequestError if the prompt `text` of `messages` lacks the newest images or recordings.

    They stand in the texts of messages, which a chat template may leave out.
    """
    shown = next((message.images for message in reversed(messages) if message.images), [])
    if any(tag(number) not in text for number in shown):
        raise RequestError(
            "the chat template leaves out the message with the newest image or recording, so that the model "
            "would not get it: use a template that writes the texts of messages"
        )


class ChatModel:
    """An engine and the chat templates of its model.

    All methods may be called from any thread. Templates run only in the model's renderer.
    """

    def __init__(self, engine: Engine, facts: ModelFacts, renderer: Renderer) -> None:
        """Take over `renderer`, which is closed with the model; `facts` describe the model's file."""
        self.engine = engine
        self._tokenizer = engine.loaded.tokenizer
        self._facts = facts
        self._renderer = renderer
        self._formats = RenderQueue(
            engine.cancel, name="puna-formats", threads=_MAX_COMPILED, stop=engine.compiler.cancel
        )
        self._turns = RenderQueue(self._formats.cancel)
        self._pictures = None if engine.images is None else Pictures(engine.images, self._turns.cancel)
        self._transcriber: Transcriber | None = None
        if engine.loaded.speech_encoder is not None:
            self._transcriber = Transcriber(engine, engine.loaded.speech_encoder)
        self._transcriptions = PartQueue("puna-transcriptions", engine.cancel, threads=engine.parallel)
        self._prefixes = PrefixWatch(self._tokenizer)
        self._closing = False
        self._process = os.getpid()
        self._template = lru_cache(maxsize=_KEPT_TEMPLATES)(partial(chat_template, facts))
        self._own = self._template("")
        self._own_traits: Traits | None = None
        # The newest front of a prompt: template, chat and thinking that it comes from, and its tokens.
        self._probed: tuple[ChatTemplate | None, Chat | None, Think, list[int]] = (None, None, None, [])
        if engine.loaded.generates and self._transcriber is None:
            # Requests without a conversation may need the template's stop strings.
            self._turns.add(_NOBODY, self._own.digest, self._look_at_own, lambda: None)

    @property
    def architecture(self) -> str:
        """The model's architecture, as its file names it."""
        return self._facts.architecture

    @property
    def active(self) -> int:
        """Number of sequences, or of recordings also between the sequences of their windows."""
        return self.engine.active if self._transcriber is None else self._transcriptions.held

    @property
    def running(self) -> int:
        """Number of these that are not waiting."""
        return self.engine.running if self._transcriber is None else self._transcriptions.at_work

    def submit(self, request: Generate | Embed | Transcribe, sink: Sink) -> None:
        """Queue a request; its events go to `sink`, `Prompted` first where text is generated.

        Raises `RequestError`, `ContextLengthError`, `UnavailableError` or `RunnerError` at once if that takes
        neither template nor format; otherwise `sink` gets a `Failed`.
        """
        self.refuse_after_fork()
        if isinstance(request, Embed):
            self.engine.submit(request, sink)
            return
        if isinstance(request, Transcribe):
            self._transcribe(request, sink)
            return

        def start(prompt: FittedPrompt) -> None:
            sink(self._prompted(request, prompt, self._broken_prefix(request, prompt)))
            if prompt.task is None:
                submit(prompt)
                return
            kind = hashlib.blake2b(prompt.task, digest_size=16).digest()
            self._take_turn(self._formats, request, sink, kind, lambda: submit(prompt))

        def submit(prompt: FittedPrompt) -> None:
            self.engine.submit(request, sink, prompt)

        self._prepare(request, sink, start)

    def _transcribe(self, request: Transcribe, sink: Sink) -> None:
        if self._transcriber is None:
            name = self.engine.loaded.path.name
            raise UnavailableError(f"{name} does not transcribe recordings: use a model as Whisper")
        work = self._transcriber.begin(request, sink)
        self._transcriptions.add(request.id, work, client=request.client, batch=request.priority == "batch")

    def render(self, request: Generate, sink: Sink, *, blocks: bool = False) -> None:
        """Send the prompt of `request` to `sink` as `Prompted`, with `blocks` if wanted, or `Failed`.

        Raises as `submit`.
        """
        self.refuse_after_fork()

        def reply(prompt: FittedPrompt) -> None:
            prompted = self._prompted(request, prompt)
            if blocks:
                digests = np.array(self.engine.prompt_blocks(request, prompt), "<u8")
                prompted = msgspec.structs.replace(prompted, blocks=digests.tobytes())
            sink(prompted)

        self._prepare(request, sink, reply)

    def tokenize(self, message: Tokenize) -> Tokenized:
        """Return the tokens of a text. Raises `ContextLengthError` for more text than any context holds."""
        check_size(text_size(message.text), self._tokenizer, self.engine.room.max_context)
        tokens = self._tokenizer.encode(
            message.text, add_special=message.add_special, parse_special=message.parse_special
        )
        return Tokenized(id=message.id, tokens=tokens)

    def detokenize(self, message: Detokenize) -> Detokenized:
        """Return the text of tokens. Raises `RequestError` for a number that is no token."""
        tokenizer, tokens = self._tokenizer, message.tokens
        return Detokenized(
            id=message.id,
            text=tokenizer.decode(tokens),
            pieces=[tokenizer.piece(token) for token in tokens],
            spellings=[tokenizer.token(token) for token in tokens],
        )

    def cancel(self, request_id: int) -> None:
        """Stop a request, wherever it is."""
        if self._transcriber is not None:
            self._transcriptions.cancel(request_id)
        else:
            (self._pictures or self._turns).cancel(request_id)

    def finish_thinking(self, request_id: int) -> None:
        """End the thinking of a request now, so that its answer begins."""
        self.engine.finish_thinking(request_id)

    def refuse_after_fork(self) -> None:
        """Raise UnavailableError in a process forked from the one that loaded the model.

        It lacks the computing threads, so that a request would wait for ever.
        """
        if os.getpid() != self._process:
            raise UnavailableError(
                f"the model was loaded in process {self._process}, from which this one was forked, and "
                "cannot be used here: use threads, which share a batch, or load the model in each process "
                '(multiprocessing.get_context("spawn"))'
            )

    def close(self) -> None:
        """End all requests with an error, and free the model's memory."""
        if os.getpid() != self._process:
            return  # threads and processes belong to the process that loaded the model
        self._closing = True
        if self._pictures is not None:
            self._pictures.close()
        self._transcriptions.close()
        self._renderer.close()
        self._turns.close()
        self._formats.close()
        self.engine.close()

    def _prepare(self, request: Generate, sink: Sink, use: Callable[[FittedPrompt], None]) -> None:
        """Pass the prompt of `request` to `use`, at once or after waiting for its images and its rendering.

        `sink` gets the errors that occur after waiting.
        """
        if self._transcriber is not None:
            name = self.engine.loaded.path.name
            raise RequestError(f"{name} does not generate text; it transcribes recordings")
        request, files = _tagged(request)
        if files:
            self._check_towers(files)
            assert self._pictures is not None
            self._pictures.add(
                request,
                files,
                lambda images: self._queue(request, sink, use, images),
                lambda error: sink(failure(request.id, error)),
            )
        elif (traits := self._traits_of(request)) is not None:
            use(self._plain(request, traits, []))
        else:
            self._queue(request, sink, use, [])

    def _check_towers(self, files: list[bytes]) -> None:
        """Raise RequestError for files of a kind that no tower of the model reads."""
        loaded, heard = self.engine.loaded, {is_audio(data) for data in files}
        if loaded.vision is None and False in heard:
            raise RequestError(
                f"{loaded.path.name} has no vision tower: send it no images, or use a model with vision"
            )
        if loaded.audio is None and True in heard:
            raise RequestError(
                f"{loaded.path.name} has no audio tower: send it no recordings, or use a model that hears"
            )

    def _queue(
        self,
        request: Generate,
        sink: Sink,
        use: Callable[[FittedPrompt], None],
        images: Shown,
    ) -> None:
        """Pass the prompt of `request` to `use` when it is its turn with the renderer."""
        template = self._template(request.template)

        def render() -> None:
            use(self._rendered(request, template, images))

        self._take_turn(self._turns, request, sink, template.digest, render)

    @staticmethod
    def _take_turn(
        turns: RenderQueue, request: Generate, sink: Sink, kind: bytes, work: Callable[[], None]
    ) -> None:
        """Do `work` when it is the turn of `request`. Errors go to `sink`."""

        def tried() -> None:
            try:
                work()
            except Exception as error:  # including bugs, which must not end this thread
                sink(failure(request.id, error))

        def give_up() -> None:
            sink(Failed.of(request.id, RunnerError("the model was unloaded")))

        turns.add(request.id, kind, tried, give_up)

    def _traits_of(self, request: Generate) -> Traits | None:
        """Return the traits for a request without a conversation; None if the renderer must be asked."""
        if isinstance(request.prompt, Chat | Insert):
            return None
        if not request.think and (request.options.stop is not None or request.ignore_eos):
            return Traits()  # none of them matters
        return None if request.template else self._own_traits

    def _look_at_own(self) -> None:
        try:
            with self._renderer.rendering(self._own) as rendering:
                self._own_traits = rendering.traits
        except PunaError as error:
            if not self._closing:
                log.warning("the model's chat template cannot be used: %s", error)

    def _rendered(self, request: Generate, template: ChatTemplate, images: Shown) -> FittedPrompt:
        """Return the prompt of `request`, using the renderer.

        Raises `TemplateError`, `TemplateLimitError`, `RendererError`, the errors of `Rendering.text`, and
        ContextLengthError for a recording that no cut of the prompt could keep.
        """
        context = self.engine.room.context_of(request)
        for image in images:
            if isinstance(image, WindowedRecording) and image.rows >= context:
                raise ContextLengthError(
                    f"a recording of {image.seconds:.0f} s has {image.rows} tokens, which exceeds the "
                    f"context length of {context} (num_ctx): send it in parts"
                )
        match request.prompt:
            case Chat() as chat:
                return self._chat(request, chat, template, images)
            case Insert() as gap:
                with self._renderer.rendering(template, gap, request.think) as rendering:
                    text = rendering.text()
                return self._text(request, rendering.traits, text, [])
        if (traits := self._traits_of(request)) is not None:
            return self._plain(request, traits, images)
        with self._renderer.rendering(template) as rendering:
            return self._plain(request, rendering.traits, images)

    def _chat(self, request: Generate, chat: Chat, template: ChatTemplate, images: Shown) -> FittedPrompt:
        """Return the prompt of a conversation, without its oldest messages if it is too long."""
        context = request.context or []
        tries: dict[str, _Read] = {}  # the whole chat first, then each shorter try
        messages, missing_bytes = chat.messages, 0
        shorten = chat.shorten and request.truncate
        if shorten:
            messages, missing_bytes = newest(
                messages, max_text(self._tokenizer, self.engine.room.context_of(request))
            )
        check_size(sum(map(size, messages)), self._tokenizer, self.engine.room.context_of(request))

        def count(text: str) -> int:
            tries[text] = self._read(text, images, add_special=not context)
            return len(tries[text].tokens)

        resumes_at_places = not context and not self.engine.cache.resumes_anywhere and request.cache_prompt
        tools = ordered(chat.tools) if chat.tools and chat.tool_choice != "none" else []
        shown = msgspec.structs.replace(chat, messages=messages, tools=tools)
        with self._renderer.rendering(template, shown, request.think) as rendering:
            if shorten:
                text = fit_chat(
                    messages, rendering.text, count, self.engine.room.context_of(request) - len(context)
                ).prompt
            else:
                text = rendering.text()
                count(text)
            before = _before_last(rendering, messages) if resumes_at_places and len(tries) == 1 else ""
        _check_shown(messages, next(iter(tries)))
        everything, read = next(iter(tries.values())), tries[text]
        # A lower bound for the text that was not even tokenised.
        missing = -(-missing_bytes // self._tokenizer.longest_bytes)
        dropped = missing + len(everything.tokens) - len(read.tokens)
        fitted = self._fitted(request, rendering.traits, read.after(context), text, dropped)
        if resumes_at_places:
            front = self._front(request, shown, template, read.tokens)
            fitted = replace(fitted, front=front, ending=self._ending(text, before, read.tokens))
        opening = self._tokenizer.encode(rendering.opening, add_special=False) if rendering.opening else []
        if not opening or read.tokens[-len(opening) :] != opening:
            return fitted
        return replace(fitted, opening=len(opening))

    def _front(self, request: Generate, chat: Chat, template: ChatTemplate, tokens: Sequence[int]) -> int:
        """Return how many `tokens` precede the first message that is not the system's; 0 if unknown.

        There other conversations with the same instructions and tools differ.
        """
        first = next((i for i, message in enumerate(chat.messages) if message.role != "system"), 0)
        if not (first or chat.tools):
            return 0
        messages = [*chat.messages[:first], Message(role="user", content=_PROBE)]
        probe = msgspec.structs.replace(chat, messages=messages, opens_answer=True)
        if self._probed[:3] != (template, probe, request.think):
            try:
                with self._renderer.rendering(template, probe, request.think) as rendering:
                    text, found, _ = rendering.text().partition(_PROBE)
            except PunaError:  # the template may want more than one message
                found = ""
            front = self._tokenizer.encode(text, add_special=True) if found else []
            self._probed = (template, probe, request.think, front)
        front = self._probed[3]
        # The last token of the front may be another one where it joins the message.
        return next((n for n in (len(front), len(front) - 1) if n > 0 and tokens[:n] == front[:n]), 0)

    def _ending(self, text: str, before: str, tokens: Sequence[int]) -> int:
        """Return how many last `tokens` of a prompt `text` follow what it shares with `before`; 0: unknown.

        Agents rewrite, move or leave out their last message in the next prompt, which then differs there.
        """
        lengths = range(min(len(text), len(before)))  # compared in blocks, as texts are long
        shared = bisect_left(lengths, True, key=lambda end: text[: end + 1] != before[: end + 1])
        if not shared or shared == len(text):
            return 0
        ending = self._tokenizer.encode(text[shared:], add_special=False)
        return len(ending) if list(tokens[-len(ending) :]) == ending else 0

    def _plain(self, request: Generate, traits: Traits, images: Shown) -> FittedPrompt:
        """Return the prompt of a request in text or tokens. Raises `RequestError`, `ContextLengthError`."""
        match request.prompt:
            case str(text):
                return self._text(request, traits, text, images)
            case list(ids):
                tokens = checked(
                    tokenised(ids, self._tokenizer, self.engine.room.context_of(request)), self._tokenizer
                )
                text = self._tokenizer.decode(ids)
                return self._fitted(request, traits, _Read(tokens).after(request.context or []), text)
            case Mixed(parts=parts):
                tokens = checked(self._mixed(request, parts), self._tokenizer)
                return self._fitted(request, traits, _Read(tokens), self._tokenizer.decode(tokens))
            case Infill() as gap:
                context = self.engine.room.context_of(request)
                texts = [gap.before, gap.after, gap.line, *(one.text + one.filename for one in gap.extra)]
                check_size(sum(map(text_size, texts)), self._tokenizer, context)
                tokens, dropped = infill_tokens(gap, self._tokenizer, context, request.options.num_predict)
                text = self._tokenizer.decode(tokens)
                return self._fitted(request, traits, _Read(tokens), text, dropped)
        raise AssertionError("conversations are rendered")

    def _mixed(self, request: Generate, parts: list[str | list[int]]) -> list[int]:
        """Return the tokens of texts and tokens in turn. Raises `RequestError`, `ContextLengthError`."""
        check_size(sum(map(text_size, parts)), self._tokenizer, self.engine.room.context_of(request))
        tokens: list[int] = []
        for number, part in enumerate(parts):
            if isinstance(part, str):
                tokens += self._tokenizer.encode(part, add_special=number == 0, first=number == 0)
            else:
                self._tokenizer.check(part)
                tokens += part
        return tokens

    def _text(self, request: Generate, traits: Traits, text: str, images: Shown) -> FittedPrompt:
        context = request.context or []
        check_size(text_size(text), self._tokenizer, self.engine.room.context_of(request))
        read = self._read(text, images, add_special=not context)
        return self._fitted(request, traits, read.after(context), text)

    def _read(self, text: str, images: Shown, *, add_special: bool) -> _Read:
        known = self.engine.images
        if known is None or not images:
            return _Read(self._tokenizer.encode(text, add_special=add_special))
        inputs = read_text(text, images, self._tokenizer, known, add_special=add_special)
        return _Read([item.token for item in inputs], inputs)

    def _fitted(
        self, request: Generate, traits: Traits, read: _Read, text: str, dropped: int = 0
    ) -> FittedPrompt:
        stop = request.options.stop
        if stop is None:
            # A template's stop strings spell out the end token. An answer with a format ends by itself.
            stop = () if request.ignore_eos or request.format is not None else traits.stop
        return FittedPrompt(
            tokens=read.tokens,
            inputs=read.inputs,
            text=text,
            stop=stop,
            reading=reading_of(request, traits, self.architecture, text),
            format=request.format,
            budget=thinking_budget(request, traits, self.engine.room.context_of(request)),
            dropped=dropped,
        )

    def _broken_prefix(self, request: Generate, prompt: FittedPrompt) -> BrokenPrefix | None:
        """Compare the prompt of a chat with the client's earlier ones; one that was cut says nothing."""
        if not isinstance(chat := request.prompt, Chat) or prompt.dropped or not request.cache_prompt:
            return None
        keys = prompt.tokens if prompt.inputs is None else [key_of(item) for item in prompt.inputs]
        return self._prefixes.note(request.client, chat.messages, keys)

    def _prompted(
        self, request: Generate, prompt: FittedPrompt, broken: BrokenPrefix | None = None
    ) -> Prompted:
        begin, first = 0, ""
        if request.prompt_logprobs:
            if isinstance(request.prompt, str):
                own = self._tokenizer.encode(prompt.text, add_special=False)
                begin = int(own[:1] != prompt.tokens[:1])  # the prompt starts with an added begin token
            if begin == 0:
                first = self._tokenizer.decode(prompt.tokens[:1])
        return Prompted(
            id=request.id, text=prompt.text, tokens=prompt.tokens, begin=begin, first=first, broken=broken
        )


def _tagged(request: Generate) -> tuple[Generate, list[bytes]]:
    """Return the request with tags in place of its images, and the image files."""
    if not isinstance(chat := request.prompt, Chat):
        return request, request.images
    messages, files = tagged(chat.messages)
    return msgspec.structs.replace(request, prompt=msgspec.structs.replace(chat, messages=messages)), files
