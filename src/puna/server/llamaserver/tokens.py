"""Routes between text and tokens: `/tokenize`, `/detokenize` and `/apply-template`.

llama.cpp's server and vLLM share the first two paths, and differ in their fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import Field
from starlette.responses import Response
from starlette.routing import Route

from puna.errors import RequestError
from puna.protocol import Generate, Prompted
from puna.server.http.bodies import Body, Many, Messages, Name, body_route
from puna.server.http.replies import json_reply
from puna.server.jobs.jobs import GenerationSpec, Job, job, one_job
from puna.server.jobs.own_fields import ChatFields, ChatMessage, prompt_messages
from puna.server.jobs.service import Service
from puna.server.jobs.tools import ToolUse, chat_choice, chat_tools
from puna.server.llamaserver.wire import wanted_model

_QUERY: Final = ("model",)


class TemplateBody(ChatFields):
    """A chat to write with the model's template, as `/v1/chat/completions` would.

    A last message of the assistant is continued in any case.
    """

    model: Name = ""
    messages: Messages[ChatMessage] = Field(default_factory=list)
    tools: Many[dict[str, Any]] = Field(default_factory=list)
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    def spec(self, model: str) -> GenerationSpec:
        """Return the request whose prompt is wanted. Raises RequestError."""
        if not self.messages:
            raise RequestError('"messages" is missing, or empty')
        messages = prompt_messages(self.messages)
        tools = chat_tools(self.tools)
        use = chat_choice(ToolUse(tools), self.tool_choice)
        chat = msgspec.structs.replace(self.chat(use, messages), opens_answer=self.add_generation_prompt)
        return GenerationSpec(
            model=model,
            endpoint="chat",
            request=Generate(truncate=False),
            prompts=[chat],
            images=[image for message in messages for image in message.images],
            needs=use.needs,
            ignored=self.ignored,
        )


class TokenizeBody(TemplateBody):
    """A text to tokenise: `content` for llama.cpp's server, `prompt` or `messages` for vLLM.

    The fields of the former are `add_special`, `parse_special` and `with_pieces`, those of the latter
    `add_special_tokens` and `return_token_strs`.
    """

    content: str | None = None
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False
    prompt: str | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False

    def check(self) -> None:
        """Raise RequestError unless there is one text."""
        given = [self.content is not None, self.prompt is not None, bool(self.messages)]
        if sum(given) != 1:
            raise RequestError(
                'give one of "content" (as to llama.cpp\'s server), "prompt" and "messages" (as to vLLM)'
            )


class DetokenizeBody(Body):
    model: Name = ""
    tokens: Many[Annotated[int, Field(ge=0, lt=2**31)]] = Field(default_factory=list)


class TokenWithPiece(msgspec.Struct):
    """A token with its text, or its bytes if they are no text."""

    id: int
    piece: str | list[int]


class Tokens(msgspec.Struct):
    """Tokens; all fields but the first are vLLM's."""

    tokens: Sequence[int | TokenWithPiece]
    count: int | UnsetType = UNSET
    max_model_len: int | UnsetType = UNSET
    token_strs: list[str] | UnsetType = UNSET


class DetokenizedText(msgspec.Struct):
    """A text: `content` for llama.cpp's clients, `prompt` for vLLM's."""

    content: str
    prompt: str


class RenderedPrompt(msgspec.Struct):
    prompt: str


def routes(backend: Service) -> list[Route]:
    async def rendered(body: TemplateBody, model: str) -> tuple[Job, Prompted]:
        todo = one_job(await job(backend, body.spec(model)))
        return todo, await backend.render(todo.order, todo.requests[0])

    async def apply_template(body: TemplateBody) -> Response:
        """Write a chat as the prompt that the model would get."""
        _, prompt = await rendered(body, wanted_model(backend, body.model))
        return json_reply(RenderedPrompt(prompt.text))

    async def tokenize(body: TokenizeBody) -> Response:
        """Turn a text or a chat into tokens."""
        body.check()
        name = wanted_model(backend, body.model)
        model = backend.find(name)
        if body.content is not None:
            tokens = await backend.tokenize(
                model, body.content, add_special=body.add_special, parse_special=body.parse_special
            )
            if not body.with_pieces:
                return json_reply(Tokens(tokens))
            pieces = (await backend.detokenize(model, tokens)).pieces
            return json_reply(Tokens([_with_piece(*pair) for pair in zip(tokens, pieces, strict=True)]))
        num_ctx = backend.num_ctx(backend.order(model, {}))
        if body.prompt is not None:
            tokens = await backend.tokenize(
                model, body.prompt, add_special=body.add_special_tokens, parse_special=True
            )
        else:
            tokens = (await rendered(body, name))[1].tokens
        reply = Tokens(tokens, len(tokens), num_ctx)
        if body.return_token_strs:
            reply.token_strs = (await backend.detokenize(model, tokens)).spellings
        return json_reply(reply)

    async def detokenize(body: DetokenizeBody) -> Response:
        """Turn tokens into text."""
        model = backend.find(wanted_model(backend, body.model))
        text = (await backend.detokenize(model, body.tokens)).text
        return json_reply(DetokenizedText(text, text))

    return [
        body_route("/tokenize", TokenizeBody, tokenize, gives=Tokens, query=_QUERY),
        body_route("/detokenize", DetokenizeBody, detokenize, gives=DetokenizedText, query=_QUERY),
        body_route("/apply-template", TemplateBody, apply_template, gives=RenderedPrompt, query=_QUERY),
    ]


def _with_piece(token: int, piece: bytes) -> TokenWithPiece:
    try:
        return TokenWithPiece(token, piece.decode())
    except UnicodeDecodeError:
        return TokenWithPiece(token, list(piece))
