"""Model names: `[scheme://][host/][namespace/]model[:tag]`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from puna.errors import InvalidNameError

DEFAULT_HOST = "registry.ollama.ai"
DEFAULT_NAMESPACE = "library"
DEFAULT_TAG = "latest"
#: Both host names of the Hugging Face hub.
HUB_HOSTS = frozenset({"hf.co", "huggingface.co"})

_SCHEMES = ("http://", "https://")
_HUB_FILE = re.compile(r"/([^/]+)/([^/]+)/(?:resolve|blob)/[^/]+/(?:.*/)?([^/]+)")

#: Each part is also a file name, so the patterns allow neither `/` nor a leading dot.
_PATTERNS = {
    "host": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-.:]{0,349}", re.ASCII),
    "namespace": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-]{0,79}", re.ASCII),
    "model": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-.]{0,79}", re.ASCII),
    "tag": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-.]{0,79}", re.ASCII),
}
_RULES = {
    "host": "1 to 350 letters, digits, '_', '-', '.' and ':'",
    "namespace": "1 to 80 letters, digits, '_' and '-'",
    "model": "1 to 80 letters, digits, '_', '-' and '.'",
    "tag": "1 to 80 letters, digits, '_', '-' and '.'",
}


@dataclass(frozen=True, slots=True)
class ModelName:
    """A complete, valid model name. Comparison is case-sensitive; lookups in the store ignore case."""

    host: str
    namespace: str
    model: str
    tag: str

    def __post_init__(self) -> None:
        for kind, pattern in _PATTERNS.items():
            value = getattr(self, kind)
            if not pattern.fullmatch(value):
                problem = f"its {kind} {value!r} must be {_RULES[kind]}, starting with a letter, digit or '_'"
                raise InvalidNameError(f"invalid model name: {problem}" if value else _missing(kind))

    @classmethod
    def parse(cls, text: str) -> ModelName:
        """Parse a name, filling in missing parts. Raises InvalidNameError.

        `x:local` is the same as `x`: clients use it to say "not in the cloud". The web address of a GGUF file
        names the model made from it.
        """
        if is_file_address(text):
            return _of_address(text)
        rest = text.partition("://")[2] if text.lower().startswith(_SCHEMES) else text
        if rest.lower().endswith(":local"):
            rest = rest[: -len(":local")]
            if rest.lower().endswith((":cloud", "-cloud")):
                raise InvalidNameError(f'use either :local or :cloud, not both: "{text}"')
        path, slash, last = rest.rpartition("/")
        model, colon, tag = last.partition(":")
        host, host_slash, namespace = path.rpartition("/")
        try:
            return cls(
                host=host if host_slash else DEFAULT_HOST,
                namespace=namespace if slash else DEFAULT_NAMESPACE,
                model=model,
                tag=tag if colon else DEFAULT_TAG,
            )
        except InvalidNameError as error:
            detail = str(error).removeprefix("invalid model name: ")
            raise InvalidNameError(f'invalid model name "{text}": {detail}') from None

    @property
    def display(self) -> str:
        """The shortest spelling, always with the tag: `llama3:latest`, `ns/m:tag`, `host/ns/m:tag`."""
        name = f"{self.model}:{self.tag}"
        if self.host != DEFAULT_HOST:
            return f"{self.host}/{self.namespace}/{name}"
        return name if self.namespace == DEFAULT_NAMESPACE else f"{self.namespace}/{name}"

    @property
    def full(self) -> str:
        """The full name, such as `registry.ollama.ai/library/llama3:latest`."""
        return f"{self.host}/{self.namespace}/{self.model}:{self.tag}"

    @property
    def path(self) -> PurePosixPath:
        """The path of the manifest, relative to `manifests/`."""
        return PurePosixPath(self.host, self.namespace, self.model, self.tag)

    @property
    def folded(self) -> tuple[str, str, str, str]:
        """The parts in lower case, equal for names of the same model."""
        return self.host.lower(), self.namespace.lower(), self.model.lower(), self.tag.lower()

    def __str__(self) -> str:
        return self.display


def is_file_address(text: str) -> bool:
    """Whether `text` is the web address of a GGUF file."""
    text = text.strip()
    return text.lower().startswith(_SCHEMES) and urlsplit(text).path.lower().endswith(".gguf")


def _of_address(text: str) -> ModelName:
    """Return the name of a file at a web address: `host/folders/file:latest`, or its repository on the hub.

    Raises InvalidNameError.
    """
    address = urlsplit(text.strip())
    path = unquote(address.path)
    found = _HUB_FILE.fullmatch(path)
    host = address.netloc.rpartition("@")[2].lower()
    if host in HUB_HOSTS and found is not None:
        return ModelName(host, found[1], found[2], found[3])
    *folders, name = path[: -len(".gguf")].split("/")
    namespace = re.sub(r"[^A-Za-z0-9_]+", "-", "-".join(folders))[-80:].strip("-") or DEFAULT_NAMESPACE
    return ModelName(host, namespace, re.sub(r"[^A-Za-z0-9_.]+", "-", name)[-80:].strip("-."), DEFAULT_TAG)


def _missing(kind: str) -> str:
    return f"invalid model name: its {kind} is missing"
