"""The Hugging Face hub, or another with its API (`HF_ENDPOINT`): choice and pull of a repository's files."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

import httpx
import msgspec

from puna.errors import GGUFError, RegistryError, UnreachableError
from puna.gguf.writer import join
from puna.registry.download import BlobPuller, Fetch
from puna.registry.network import TransferCancelledError, in_time, open_client, what_failed
from puna.registry.remote import RefusedError, beginning
from puna.registry.report import TransferProgress
from puna.store import ModelSpec, StoredModel
from puna.store.blobs import BlobWriter
from puna.store.manifest import MODEL, ManifestLayer
from puna.store.names import HUB_HOSTS, ModelName

#: Quantisations for a name without a tag, best first.
_PREFERRED = ("Q4_K_M", "Q4_K_S", "Q4_K_XL", "Q4_0", "MXFP4", "MXFP4_MOE", "Q5_K_M", "Q6_K", "Q8_0", "Q3_K_M")
_PREFERRED_PROJECTORS = ("F16", "FP16", "BF16", "Q8_0", "F32")
#: GGUF files that are no models: projectors and importance matrices.
_NO_MODEL = ("mmproj", "imatrix")
#: GGUF files that only draft for the model beside them.
_DRAFTERS = ("mtp-", "eagle3-", "dflash-", "dspark-")
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})")
_LABEL = re.compile(
    r"(?:^|[-._])((?:I?Q|TQ)\d[A-Z0-9_]*|BF16|FP?16|FP?32|FP8|MXFP4(?:_MOE)?|NVFP4)$", re.IGNORECASE
)
_MAX_NAMED = 12


@dataclass(frozen=True)
class RepositoryFile:
    """A file of a repository: its path there, its size in bytes and its digest."""

    path: str
    size: int
    digest: str

    @property
    def stem(self) -> str:
        """The name without folders, extension and part number."""
        name = PurePosixPath(self.path).name.removesuffix(".gguf")
        part = _PART.fullmatch(name)
        return part["stem"] if part else name

    @property
    def part(self) -> tuple[int, int]:
        """The part number, from 1, and the number of parts."""
        part = _PART.fullmatch(PurePosixPath(self.path).name.removesuffix(".gguf"))
        return (int(part["number"]), int(part["count"])) if part else (1, 1)

    @property
    def label(self) -> str:
        """The quantisation in the file's name, such as `Q4_K_M`; empty if there is none."""
        found = _LABEL.search(self.stem)
        return found[1].upper() if found else ""

    @property
    def folder(self) -> PurePosixPath:
        return PurePosixPath(self.path).parent


@dataclass(frozen=True)
class ModelFiles:
    """The files of one model: its parts in order, and its projector, if any."""

    parts: tuple[RepositoryFile, ...]
    projector: RepositoryFile | None


def choose(files: Iterable[RepositoryFile], tag: str, where: str) -> ModelFiles:
    """Choose the files that `tag` names: a quantisation, a file name, or the best (`latest`).

    A file that drafts for another is chosen only by its name, or where there are no others. Raises
    RegistryError, naming `where`, if there is no such file or a part of it is missing.
    """
    found = [file for file in files if file.path.endswith(".gguf")]
    models = [file for file in found if not _has(file.stem, _NO_MODEL)]
    if not models:
        raise RegistryError(f"{where} has no GGUF model; look for a repository that does (often -GGUF)")
    drafters = [file for file in models if _has(file.stem, _DRAFTERS)]
    drafts = len(drafters) == len(models) or _has(tag, _DRAFTERS)
    models = drafters if drafts else [file for file in models if file not in drafters]
    first = _chosen(models, tag)
    if first is None:
        labels = sorted({file.label or file.stem for file in models})
        named = ", ".join(labels[:_MAX_NAMED]) + (", ..." if len(labels) > _MAX_NAMED else "")
        raise RegistryError(f"{where} has no '{tag}'; it has {named}")
    return ModelFiles(_parts(models, first, where), None if drafts else _projector(found, first))


def _has(name: str, words: Sequence[str]) -> bool:
    return any(word in name.lower() for word in words)


def _chosen(models: Sequence[RepositoryFile], tag: str) -> RepositoryFile | None:
    """Return the first part of the model that `tag` names, or None."""
    order = sorted(models, key=lambda file: (len(PurePosixPath(file.path).parts), file.path))
    if tag.lower() == "latest":
        for label in _PREFERRED:
            if found := next((file for file in order if file.label == label), None):
                return found
        return order[0] if order else None
    wanted = tag.lower().removesuffix(".gguf")
    exact = [
        file
        for file in order
        if wanted in (file.label.lower(), file.stem.lower(), PurePosixPath(file.path).stem.lower())
    ]
    within = re.compile(rf"(^|[-._/]){re.escape(wanted)}([-._/]|$)")
    return next(iter(exact), None) or next((file for file in order if within.search(file.path.lower())), None)


def _parts(models: Sequence[RepositoryFile], first: RepositoryFile, where: str) -> tuple[RepositoryFile, ...]:
    count = first.part[1]
    same = {
        file.part[0]: file
        for file in models
        if (file.folder, file.stem, file.part[1]) == (first.folder, first.stem, count)
    }
    if missing := [number for number in range(1, count + 1) if number not in same]:
        raise RegistryError(f"{where}: part {missing[0]} of {count} of {first.stem} is missing")
    return tuple(same[number] for number in range(1, count + 1))


def _projector(files: Sequence[RepositoryFile], model: RepositoryFile) -> RepositoryFile | None:
    """Return the best projector in the model's folder, else in a folder above it, else None."""

    def rank(file: RepositoryFile) -> tuple[int, int, str]:
        known = file.label in _PREFERRED_PROJECTORS
        best = _PREFERRED_PROJECTORS.index(file.label) if known else len(_PREFERRED_PROJECTORS)
        return -len(file.folder.parts), best, file.path

    near = [
        file
        for file in files
        if "mmproj" in file.stem.lower()
        and (file.folder == model.folder or file.folder in model.folder.parents)
    ]
    return min(near, key=rank, default=None)


_ENDPOINT = "https://huggingface.co"
_MAX_LISTED = 32 << 20
_MAX_PAGES = 20
_MAX_TEXT = 1 << 20


class _Lfs(msgspec.Struct):
    oid: str
    size: int


class _Entry(msgspec.Struct):
    type: str
    path: str
    lfs: _Lfs | None = None


class Hub:
    """A repository on the hub. Enter it before use; it is safe to use from several threads."""

    def __init__(self, repository: str, endpoint: str, token: str) -> None:
        self.cancelled: threading.Event | None = None  # stops reading once set
        self.repository = repository
        self.endpoint = endpoint
        self.token = token

    def __enter__(self) -> Hub:
        self._client = open_client(endpoint=self.endpoint, cancelled=self.cancelled)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def files(self) -> tuple[list[RepositoryFile], set[str]]:
        """List the large files, with digests, and the paths of all others. Raises RegistryError."""
        large: list[RepositoryFile] = []
        others: set[str] = set()
        url = f"{self.endpoint}/api/models/{self.repository}/tree/main?recursive=true"
        for _ in range(_MAX_PAGES):
            entries, url = self._page(url)
            for entry in entries:
                if entry.type == "file" and entry.lfs is None:
                    others.add(entry.path)
                elif entry.lfs is not None and 0 <= entry.lfs.size < 1 << 50:
                    large.append(RepositoryFile(entry.path, entry.lfs.size, f"sha256:{entry.lfs.oid}"))
            if not url:
                break
        return large, others

    def text(self, path: str) -> str:
        """Read a small file. Raises RegistryError."""
        with self._told(), in_time(path), self._get(self._file_url(path), {}) as answer:
            data = beginning(answer, _MAX_TEXT + 1)
        if len(data) > _MAX_TEXT:
            raise RegistryError(f"{path} of {self.repository} has more than {_MAX_TEXT >> 20} MB")
        return data.decode("utf-8", "replace")

    def fetch(self, path: str) -> Fetch:
        """Return the function that fetches parts of a large file."""
        return partial(self._part, path)

    @contextmanager
    def _part(self, path: str, start: int, end: int) -> Iterator[httpx.Response]:
        with self._get(self._file_url(path), {"range": f"bytes={start}-{end - 1}"}) as answer:
            yield answer

    def _file_url(self, path: str) -> str:
        return f"{self.endpoint}/{self.repository}/resolve/main/{quote(path)}"

    def _page(self, url: str) -> tuple[list[_Entry], str]:
        """Return a page of the file list, and the address of the next page; empty after the last."""
        with self._told(), in_time("the list of files"), self._get(url, {}) as answer:
            data = beginning(answer, _MAX_LISTED)
            following = answer.links.get("next", {}).get("url", "")
        try:
            entries = msgspec.json.decode(data, type=list[_Entry])
        except msgspec.DecodeError as error:
            raise RegistryError(f"{self.endpoint} does not answer like a model hub: {error}") from error
        following = following and urljoin(url, following)
        # Our token must not go to another host.
        return entries, following if urlsplit(following).netloc == urlsplit(self.endpoint).netloc else ""

    @contextmanager
    def _get(self, url: str, headers: dict[str, str]) -> Iterator[httpx.Response]:
        if self.token:
            headers = headers | {"authorization": f"Bearer {self.token}"}
        with ExitStack() as stack:
            with in_time(f"an answer of {urlsplit(url).hostname}"):
                answer = stack.enter_context(self._client.stream("GET", url, headers=headers))
            if answer.is_error:
                raise RefusedError.of(answer)
            yield answer

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except RefusedError as refusal:
            raise self.error(refusal) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UnreachableError(f"{self.endpoint}: {what_failed(error)}") from error

    def error(self, refusal: RefusedError) -> RegistryError:
        """Return the error for a refusal by the hub, with what to do about it."""
        page = f"{self.endpoint}/{self.repository}"
        token = "the token in HF_TOKEN" if self.token else "HF_TOKEN, which is not set for the server,"
        if refusal.code == "GatedRepo" or refusal.status == 403:
            return RegistryError(
                f"{self.repository} is gated: agree to its terms at {page}; {token} must belong to an "
                "account that has agreed"
            )
        if refusal.status in (401, 404):
            return RegistryError(
                f"file does not exist: there is no {page}, or it is private; {token} must belong to an "
                "account that may read it"
            )
        return RegistryError(f"{self.endpoint}: {refusal}")


def hub_of(name: ModelName) -> Hub | None:
    """Return the repository of a name on the hub; None for other registries. Raises RegistryError."""
    if name.host.lower() not in HUB_HOSTS:
        return None
    endpoint = (os.environ.get("HF_ENDPOINT") or _ENDPOINT).rstrip("/")
    if urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).netloc:
        raise RegistryError(f"HF_ENDPOINT={endpoint} is not a web address")
    return Hub(f"{name.namespace}/{name.model}", endpoint, _token())


def _token() -> str:
    """Return `HF_TOKEN`, or the token saved by Hugging Face's own tools."""
    if given := os.environ.get("HF_TOKEN", "").strip():
        return given
    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    try:
        return (Path(home) / "token").read_text("ascii")[:1000].strip()
    except (OSError, ValueError):
        return ""


def pull_files(puller: BlobPuller, hub: Hub, model: ModelName) -> StoredModel:
    """Make `model` from the files that its tag names, with the template and options beside them.

    A split file is joined, because parts in the store would not find each other. Raises RegistryError,
    StoreError and TransferCancelledError.
    """
    hub.cancelled = puller.cancelled
    with hub:
        large, others = hub.files()
        choice = choose(large, model.tag, f"{model.host}/{hub.repository}")
        origin = f"{model.display} of {_fingerprint(choice)}"
        joined = _known(puller, model, origin) if len(choice.parts) > 1 else choice.parts[0].digest
        files = [] if joined and len(choice.parts) > 1 else list(choice.parts)
        files += [choice.projector] if choice.projector else []
        paths = {file.digest: file.path for file in files}
        layers = [ManifestLayer(media_type=MODEL, digest=file.digest, size=file.size) for file in files]
        extra = 0 if joined else sum(part.size for part in choice.parts)
        try:
            puller.fetch(layers, lambda layer: hub.fetch(paths[layer.digest]), extra)
        except RefusedError as refusal:
            raise hub.error(refusal) from None
        except httpx.HTTPError as error:
            raise UnreachableError(f"{hub.endpoint}: {what_failed(error)}") from error
        texts = {name: hub.text(name) for name in ("template", "system", "params") if name in others}
    digest = joined or _join(puller, choice)
    named = {f"{choice.parts[0].stem}.gguf": digest}
    if choice.projector:
        named[f"{choice.projector.stem}.gguf"] = choice.projector.digest
    spec = ModelSpec(
        files=named,
        origins=dict.fromkeys(list(named)[:1], origin) if len(choice.parts) > 1 else {},
        template=texts.get("template"),
        system=texts.get("system"),
        parameters=_parameters(texts.get("params", "{}"), hub.repository),
    )
    created = puller.store.create(
        model, spec, lambda status: puller.report(TransferProgress(status)) if status != "success" else None
    )
    if len(choice.parts) > 1:
        puller.store.drop_unused({part.digest for part in choice.parts})
    puller.report(TransferProgress("success"))
    return created


def _fingerprint(choice: ModelFiles) -> str:
    digests = "\n".join(part.digest for part in choice.parts)
    return f"sha256:{hashlib.sha256(digests.encode()).hexdigest()}"


def _known(puller: BlobPuller, model: ModelName, origin: str) -> str:
    """Return the digest of the file that an earlier pull joined from these parts; empty if there is none."""
    if not puller.store.exists(model):
        return ""
    layer = puller.store.get(model).model_layer
    return layer.digest if layer and layer.origin == origin and puller.store.has_blob(layer.digest) else ""


def _join(puller: BlobPuller, choice: ModelFiles) -> str:
    """Join the parts, which the store has, and return the digest of the whole."""
    total, done = sum(part.size for part in choice.parts), 0
    status = f"joining {len(choice.parts)} parts"
    with BlobWriter(puller.store.blobs.folder) as writer:

        def write(data: bytes) -> None:
            nonlocal done
            if puller.cancelled.is_set():
                raise TransferCancelledError
            writer.write(data)
            done = min(done + len(data), total)
            puller.report(TransferProgress(status, total=total, completed=done))

        try:
            join([puller.store.blob_path(part.digest) for part in choice.parts], write)
        except GGUFError as error:
            raise RegistryError(f"{choice.parts[0].stem} cannot be joined: {error}") from error
        return writer.commit()


def _parameters(text: str, repository: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise RegistryError(f"the file 'params' of {repository} does not hold options: {error}") from error
