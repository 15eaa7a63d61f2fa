"""Every error Puna raises on purpose.

One hierarchy: catch `PunaError` to catch them all. Each message says what was
wrong, where, and what to do. `status` is the HTTP status the server answers
with when the error reaches it before a response has begun; `kind` is the
class name, which is how an error crosses the process border to the runner and
comes back as the same class (see `puna.runner.protocol`).
"""

from __future__ import annotations

from typing import ClassVar


class PunaError(Exception):
    """Base of all errors raised by Puna."""

    status: ClassVar[int] = 500

    @property
    def kind(self) -> str:
        return type(self).__name__

    @classmethod
    def of_kind(cls, kind: str, message: str) -> PunaError:
        """The error class named `kind` (as sent by another process) with `message`."""
        return _by_name().get(kind, PunaError)(message)


def _by_name() -> dict[str, type[PunaError]]:
    found: dict[str, type[PunaError]] = {}
    pending: list[type[PunaError]] = [PunaError]
    while pending:
        error = pending.pop()
        found[error.__name__] = error
        pending.extend(error.__subclasses__())
    return found


class GGUFError(PunaError):
    """A file is not a valid GGUF file, or is damaged."""


class ModelError(PunaError):
    """A model file is readable but cannot be run (missing or misshapen tensors, bad metadata)."""


class UnsupportedModelError(ModelError):
    """The file's architecture, tokenizer or tensor type is not one Puna implements."""


class InsufficientMemoryError(ModelError):
    """Loading would need more memory than there is: `needed` bytes of `available` ones, where known."""

    def __init__(self, message: str, needed: int = 0, available: int = 0) -> None:
        super().__init__(message)
        self.needed = needed
        self.available = available


class TokenizerError(ModelError):
    """The tokenizer metadata of a model is missing or inconsistent."""


class ModelNotFoundError(PunaError):
    """No model of that name is in the store, and no such file exists."""

    status = 404


class InvalidNameError(PunaError):
    """A model name, digest or path does not have the required form."""

    status = 400


class StoreError(PunaError):
    """The model store cannot be read or written (damaged manifest, disk full, permissions)."""


class RequestError(PunaError):
    """The caller asked for something invalid; the message says which part."""

    status = 400


class OptionError(RequestError):
    """An option has the wrong type or is out of range."""


class ContextLengthError(RequestError):
    """The prompt does not fit the context and truncation was not allowed."""


class TemplateError(PunaError):
    """A chat template does not parse or fails when rendered."""


class CacheFullError(PunaError):
    """The KV cache has fewer free cells than the batch needs."""


class CacheFileError(PunaError):
    """A saved sequence cannot be restored: the file is damaged, or of another model or other cache types."""


class NotSupportedError(PunaError):
    """The model or cache cannot do this operation; the caller should fall back."""


class UnavailableError(PunaError):
    """This version of Puna does not have the feature that was asked for."""

    status = 501


class GenerationError(PunaError):
    """One sequence failed (NaN logits, grammar dead end); others are not affected."""


class EmbeddingError(GenerationError):
    """What a model made of a text is no vector: values are NaN or infinite."""

    status = 400  # as clients know it


class RunnerError(PunaError):
    """The runner process died, hung, or broke its protocol."""


class OutOfMemoryError(RunnerError):
    """A loaded model could not get the memory a request needed."""

    def __init__(
        self,
        message: str = "the model runner is out of memory; use a smaller num_ctx or num_batch, or fewer "
        "requests at once (PUNA_NUM_PARALLEL)",
    ) -> None:
        super().__init__(message)


class CrashLoopError(RunnerError):
    """The model's runner died several times in a row; it is not loaded again for a while."""

    status = 503


class ServerBusyError(PunaError):
    """The queue is full."""

    status = 503


class ConnectionFailedError(PunaError):
    """The CLI cannot reach the server."""


class ServerError(PunaError):
    """The server answered the command line with an error; the message is the server's own."""

    def __init__(self, message: str, status_code: int = 500) -> None:
        super().__init__(message)
        self.status_code = status_code  # 200 when the error came as a line of a stream
