"""Pulling a hub's files: those of one model, made a model of the store."""

from __future__ import annotations

import hashlib
from typing import Any

import httpx
import msgspec

from puna.errors import GGUFError, RegistryError, UnreachableError
from puna.gguf.join import join
from puna.registry.blob_puller import BlobPuller
from puna.registry.hub import Hub
from puna.registry.network import TransferCancelledError, what_failed
from puna.registry.quants import Choice, choose
from puna.registry.remote import RefusedError
from puna.registry.report import Progress
from puna.store import ModelName, ModelSpec, StoredModel
from puna.store.blobs import BlobWriter
from puna.store.manifest import MODEL, Layer


def pull_files(puller: BlobPuller, hub: Hub, model: ModelName) -> StoredModel:
    """Make `model` of the files that its tag means, with the template and options beside them.

    A split file becomes one: in the store, parts would not find each other. Raises RegistryError, StoreError
    and TransferCancelledError.
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
        layers = [Layer(media_type=MODEL, digest=file.digest, size=file.size) for file in files]
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
        model, spec, lambda status: puller.report(Progress(status)) if status != "success" else None
    )
    if len(choice.parts) > 1:
        puller.store.drop_unused({part.digest for part in choice.parts})
    puller.report(Progress("success"))
    return created


def _fingerprint(choice: Choice) -> str:
    digests = "\n".join(part.digest for part in choice.parts)
    return f"sha256:{hashlib.sha256(digests.encode()).hexdigest()}"


def _known(puller: BlobPuller, model: ModelName, origin: str) -> str:
    """The digest of what these parts were joined to by an earlier pull; else empty."""
    if not puller.store.exists(model):
        return ""
    layer = puller.store.get(model).model_layer
    return layer.digest if layer and layer.origin == origin and puller.store.has_blob(layer.digest) else ""


def _join(puller: BlobPuller, choice: Choice) -> str:
    """Join the parts, which the store has; the digest of the whole."""
    total, done = sum(part.size for part in choice.parts), 0
    status = f"joining {len(choice.parts)} parts"
    with BlobWriter(puller.store.blobs.folder) as writer:

        def write(data: bytes) -> None:
            nonlocal done
            if puller.cancelled.is_set():
                raise TransferCancelledError
            writer.write(data)
            done = min(done + len(data), total)
            puller.report(Progress(status, total=total, completed=done))

        try:
            join([puller.store.blob_path(part.digest) for part in choice.parts], write)
        except GGUFError as error:
            raise RegistryError(f"{choice.parts[0].stem} cannot be joined: {error}") from error
        return writer.commit()


def _parameters(text: str, repository: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise RegistryError(f"the file 'params' of {repository} holds no options: {error}") from error
