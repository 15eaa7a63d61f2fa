"""A loaded model as one talks to it, for the runner and the library alike."""

from __future__ import annotations

from functools import cache

from puna.conversation.newest import newest, size
from puna.engine.engine import Engine
from puna.engine.events import Embed, Generate, Prompted
from puna.engine.requests import FittedPrompt, check_size, checked, most_text, tokenised
from puna.engine.sequence import Sink
from puna.prompt.choose import chat_format
from puna.prompt.fit import fit_chat
from puna.prompt.format import ChatFormat
from puna.prompt.messages import Chat, Insert, Message
from puna.prompt.model_facts import ModelFacts


class ChatModel:
    """An engine and the templates its model is talked to with.

    All methods may be called from any thread. What a template does, it does here, in the model's process.
    """

    def __init__(self, engine: Engine, facts: ModelFacts) -> None:
        """`facts` are what the model's file says about chatting with it."""
        self.engine = engine
        self._tokenizer = engine.loaded.tokenizer
        self._facts = facts

    @property
    def architecture(self) -> str:
        """The model's, as its file names it."""
        return self._facts.architecture

    def submit(self, request: Generate | Embed, sink: Sink) -> None:
        """Queue a request; its events go to `sink`, `Prompted` first where text is generated.

        Raises at once when it cannot be served: `TemplateError`, `RequestError`, `NotSupportedError`,
        `ContextLengthError`, `UnavailableError`.
        """
        if isinstance(request, Embed):
            self.engine.submit(request, sink)
            return
        prompt = self.prompt(request)
        sink(self._prompted(request, prompt))
        self.engine.submit(request, sink, prompt)

    def render(self, request: Generate) -> Prompted:
        """What the prompt of `request` comes to. Raises as `submit` does."""
        return self._prompted(request, self.prompt(request))

    def prompt(self, request: Generate) -> FittedPrompt:
        """The prompt of `request`: rendered, made to fit the context as a chat can be, and tokenised.

        Raises `TemplateError`, `NotSupportedError` for a gap where the template has no place for one.
        """
        # Looked at only if something of it counts: a text to go on with needs none.
        form = cache(lambda: chat_format(self._facts, request.template))
        context = request.context or []
        dropped = 0
        match request.prompt:
            case Chat() as chat:
                text, tokens, dropped = self._chat(request, chat, form(), context)
            case Insert(before=before, after=after):
                text = form().render_insert(before, after, think=request.think)
                tokens = [*context, *self._tokens(text, context)]
            case str(text):
                tokens = [*context, *self._tokens(text, context)]
            case list(ids):
                tokens = [*context, *checked(self._tokens(ids, context), self._tokenizer)]
                text = self._tokenizer.decode(ids)
        stop = request.options.stop
        if stop is None:
            # A template's stop strings are the model's end, spelled out.
            stop = () if request.ignore_eos else form().stop
        return FittedPrompt(
            tokens=tokens,
            text=text,
            stop=stop,
            thinking=form().thinking_tags if request.think else None,
            dropped=dropped,
        )

    def _chat(
        self, request: Generate, chat: Chat, form: ChatFormat, context: list[int]
    ) -> tuple[str, list[int], int]:
        """The text and the tokens of a conversation, and how many tokens the messages left out had."""
        tokens: dict[str, list[int]] = {}  # of the whole chat first, then of each shorter try
        messages, missing_bytes = chat.messages, 0
        shorten = chat.shorten and request.truncate
        if shorten:
            messages, missing_bytes = newest(messages, most_text(self._tokenizer, self.engine.context))
        check_size(sum(map(size, messages)), self._tokenizer, self.engine.context)

        def render(messages: list[Message]) -> str:
            return form.render(messages, tools=chat.tools or None, think=request.think)

        def count(text: str) -> int:
            tokens[text] = self._tokenizer.encode(text, add_special=not context)
            return len(tokens[text])

        if shorten:
            text = fit_chat(messages, render, count, self.engine.context - len(context)).prompt
        else:
            text = render(messages)
            count(text)
        everything = next(iter(tokens.values()))
        # What was not even tokenised had at least so many.
        missing = -(-missing_bytes // self._tokenizer.longest_bytes)
        return text, [*context, *tokens[text]], missing + len(everything) - len(tokens[text])

    def _tokens(self, prompt: str | list[int], context: list[int]) -> list[int]:
        return tokenised(prompt, self._tokenizer, self.engine.context, add_special=not context)

    def _prompted(self, request: Generate, prompt: FittedPrompt) -> Prompted:
        begin, first = 0, ""
        if request.prompt_logprobs:
            if isinstance(request.prompt, str):
                own = self._tokenizer.encode(prompt.text, add_special=False)
                begin = int(own[:1] != prompt.tokens[:1])  # the begin token the model wants comes first
            if begin == 0:
                first = self._tokenizer.decode(prompt.tokens[:1])
        return Prompted(id=request.id, text=prompt.text, tokens=prompt.tokens, begin=begin, first=first)
