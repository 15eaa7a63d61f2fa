"""All errors Puna raises on purpose, in one hierarchy: catch `PunaError` to catch them all.

Each message says what was wrong, where, and what to do. `status` is the HTTP status of the
server's response if the error occurs before the response has started. `kind` is the class name; the
runner process sends it so that the error is raised as the same class in the server (see
`puna.protocol`).
"""

from __future__ import annotations

import reprlib
from typing import ClassVar, Final

from puna.lines import shortened

#: Longer messages are shortened, since they may quote megabytes of a request or file.
LONGEST_MESSAGE: Final = 2000  # characters


class PunaError(Exception):
    """Base class of all errors raised by Puna. Very long messages lose their middle."""

    status: ClassVar[int] = 500

    def __init__(self, message: str = "") -> None:
        super().__init__(shortened(message, LONGEST_MESSAGE))

    @property
    def kind(self) -> str:
        return type(self).__name__

    @classmethod
    def of_kind(cls, kind: str, message: str) -> PunaError:
        """Return an error of the class named `kind` (as sent by another process) with `message`."""
        return _by_name().get(kind, PunaError)(message)


def shown(value: object) -> str:
    """Return the shortened `repr` of `value`, for an error message."""
    return _REPR.repr(value)


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = 100  # characters


def _by_name() -> dict[str, type[PunaError]]:
    found: dict[str, type[PunaError]] = {}
    pending: list[type[PunaError]] = [PunaError]
    while pending:
        error = pending.pop()
        found[error.__name__] = error
        pending.extend(error.__subclasses__())
    return found


class GGUFError(PunaError):
    """A file is not a GGUF file or is damaged."""


class ModelError(PunaError):
    """A model file is readable but cannot be run (missing tensors, wrong shapes, bad metadata)."""


class UnsupportedModelError(ModelError):
    """Puna does not implement the file's architecture, tokenizer or tensor type."""


class InsufficientMemoryError(ModelError):
    """Loading the model needs more memory (`needed` bytes) than is `available`; both are 0 if unknown."""

    def __init__(self, message: str, needed: int = 0, available: int = 0) -> None:
        super().__init__(message)
        self.needed = needed
        self.available = available


class TokenizerError(ModelError):
    """The tokenizer metadata of a model is missing or inconsistent."""


class ModelNotFoundError(PunaError):
    """The store has no model of that name, and no such file exists."""

    status = 404


class ResponseNotFoundError(PunaError):
    """The server has not kept a response, conversation, item or batch with that id."""

    status = 404


class ChatNotFoundError(PunaError):
    """A chat, message, file, preset or run of the page does not exist or belongs to someone else."""

    status = 404


class StreamNotFoundError(PunaError):
    """The server keeps no stream of that id, or no longer the events that follow."""

    status = 404


class HistoryError(PunaError):
    """The page's history cannot be read or written."""


class HistoryClosedError(HistoryError):
    """The server is shutting down, and has closed its history."""

    status = 503


class PathNotFoundError(PunaError):
    """The server has no such path."""

    status = 404


class MethodError(PunaError):
    """The path does not support the request's method."""

    status = 405


class InvalidNameError(PunaError):
    """A model name, digest or path does not have the required form."""

    status = 400


class StoreError(PunaError):
    """The model store cannot be read or written (damaged manifest, disk full, permissions)."""


class RegistryError(PunaError):
    """A registry or another source of models refuses, cannot be reached, or sends invalid data."""


class RefusedAddressError(RegistryError):
    """The server does not connect to this address for models, because it is private or without TLS."""

    status = 400


class UnreachableError(RegistryError):
    """A registry or another source of models cannot be reached, or gives an invalid reply."""

    status = 502


class MCPServerError(PunaError):
    """An MCP server cannot be started or reached, breaks a limit, or fails a call of one of its tools."""

    status = 502


class RequestError(PunaError):
    """The caller's request is invalid; the message names the invalid part."""

    status = 400


class BodyTooLargeError(RequestError):
    """The request's body is larger than the server allows."""

    status = 413


class ConversionError(RequestError):
    """A published model's folder is incomplete, damaged, or of an architecture that cannot be converted."""


class CreationLimitError(RequestError):
    """Making a model from its files takes more time or memory than is allowed."""


class CreatorError(PunaError):
    """The process that creates a model cannot be started, or broke its protocol."""


class OptionError(RequestError):
    """An option has the wrong type or is out of range."""


class ContextLengthError(RequestError):
    """The prompt does not fit the context, and truncation was not allowed."""


class ImageError(RequestError):
    """An image cannot be read, or exceeds a limit."""


class AudioError(RequestError):
    """A recording cannot be read, or exceeds a limit."""


class DocumentError(RequestError):
    """A PDF document cannot be read, or exceeds a limit."""


class TemplateError(PunaError):
    """A chat template does not parse."""


class TemplateRenderError(TemplateError):
    """A chat template fails to render a conversation that it was not made for."""

    status = 400


class TemplateRefusalError(TemplateRenderError):
    """A chat template refuses the conversation and says why (`raise_exception`)."""


class TemplateLimitError(RequestError):
    """Rendering a request's chat template takes more time, memory or text than is allowed."""


class RendererError(PunaError):
    """The process that renders chat templates cannot be started, was ended, or broke its protocol."""

    status = 503


class PreparerError(PunaError):
    """The process that decodes images cannot be started, was ended, or broke its protocol."""

    status = 503


class ReaderError(PunaError):
    """The process that reads a PDF or audio file cannot be started, was ended, or broke its protocol."""

    status = 503


class ImporterError(PunaError):
    """The process that reads imported chats cannot be started, was ended, or broke its protocol."""

    status = 503


class CacheFullError(PunaError):
    """The KV cache has fewer free cells than the batch needs."""


class CacheFileError(PunaError):
    """A saved sequence cannot be restored: the file is damaged, or from another model or cache type."""


class NotSupportedError(PunaError):
    """The model or cache does not support this operation; the caller should fall back."""


class UnavailableError(PunaError):
    """The requested feature is not available in this version of Puna."""

    status = 400  # 501 would be better, but clients retry after any status over 500


class RequestCancelledError(PunaError):
    """A client cancelled the request by its id."""

    status = 400  # clients retry after statuses that would be better

    def __init__(self, message: str = "the request was cancelled") -> None:
        super().__init__(message)


class GenerationError(PunaError):
    """One sequence failed (NaN logits, grammar dead end); other sequences are not affected."""


class FormatError(GenerationError):
    """Following an answer's format takes more work than is allowed."""

    status = 400


class EmbeddingError(GenerationError):
    """The embedding of a text has NaN or infinite values."""

    status = 400  # as in Ollama


class SlowClientError(PunaError):
    """The client read its answer too slowly for the server to keep the rest."""


class RunnerError(PunaError):
    """The runner process died, hung, or broke its protocol."""


class ModelLostError(RunnerError):
    """A part of the model that is in another process is gone, so that this process is of no use any more."""


class OutOfMemoryError(RunnerError):
    """A loaded model could not allocate the memory a request needs."""

    def __init__(
        self,
        message: str = "the model runner is out of memory; use a smaller num_ctx or num_batch, or fewer "
        "parallel requests (PUNA_NUM_PARALLEL)",
    ) -> None:
        super().__init__(message)


class CrashLoopError(RunnerError):
    """The model's runner died several times in a row, so the model is not reloaded for a while."""

    status = 503


class ServerBusyError(PunaError):
    """The server's queue is full."""

    status = 503


class KeyFileError(PunaError):
    """The file of API keys cannot be read or written, or a key for it is invalid."""


class AuthenticationError(PunaError):
    """The request has no valid API key; `known` is False if it has an unknown one."""

    status = 401

    def __init__(self, message: str, *, known: bool = True) -> None:
        super().__init__(message)
        self.challenge = 'Bearer realm="puna"' + ("" if known else ', error="invalid_token"')


class ScopeError(PunaError):
    """The request's API key does not allow this operation."""

    status = 403


class RateLimitError(PunaError):
    """The request's API key has reached its limit."""

    status = 429

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ConnectionFailedError(PunaError):
    """The CLI cannot reach the server."""


class ServerError(PunaError):
    """The server answered a command with an error; the message is the server's own."""

    def __init__(self, message: str, status_code: int = 500) -> None:
        super().__init__(message)
        self.status_code = status_code  # 200 if the error was a line of a stream
