"""The layers, config and manifest of a new model, built from its description."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from puna import gojson
from puna.errors import GGUFError, ModelError, RequestError, StoreError, shown
from puna.gguf import FileType
from puna.options import LARGEST_SCALE, MAX_ADAPTERS, is_scale
from puna.store import manifest as media
from puna.store.blobs import Blobs, normalize_digest
from puna.store.config import ModelConfig
from puna.store.facts import MAGIC, Facts, facts_of
from puna.store.manifest import Manifest, ManifestLayer
from puna.store.stored import StoredModel

#: Called with PEFT's settings, its tensors, the model file, and the path of the adapter to write.
Converter = Callable[[Path, Path, Path, Path], object]

#: Files that PEFT saves for an adapter.
_PEFT = ("adapter_config.json", "adapter_model.safetensors")

#: File names of parts of a split model.
PART_NAME = re.compile(r".*-\d{5}-of-\d{5}\.gguf", re.IGNORECASE)

_KINDS = {"model": media.MODEL, "projector": media.PROJECTOR, "adapter": media.ADAPTER}


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """The ingredients of a new model.

    Either `from_model` (an existing model whose layers are inherited; it takes precedence) or `files` (name
    -> digest of uploaded blobs: GGUF files, or those of a published model's folder) is required. Empty
    strings keep the inherited value; `parameters` are merged key by key, licences and adapters appended,
    `messages` replaced. `making` converts files first if necessary: `replaced` maps digests of inherited
    model files to those of their new forms. `origins` are recorded as the sources of files instead of their
    paths.
    """

    from_model: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    adapters: Mapping[str, str] = field(default_factory=dict)  # GGUF files, or those of PEFT folders
    adapter_scales: Mapping[str, float] = field(default_factory=dict)  # by adapter; default 1
    template: str | None = None
    system: str | None = None
    license: Sequence[str] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    messages: Sequence[Mapping[str, Any]] = ()
    renderer: str | None = None
    parser: str | None = None
    requires: str | None = None
    quantize: FileType | None = None
    replaced: Mapping[str, str] = field(default_factory=dict)


def needs_making(spec: ModelSpec) -> bool:
    """Whether files have to be converted, joined or quantised first."""
    made = (".safetensors", ".bin") if spec.from_model is None else ()
    return spec.quantize is not None or any(
        name.lower().endswith(made) or (made and PART_NAME.fullmatch(name)) for name in spec.files
    )


def needs_process(spec: ModelSpec) -> bool:
    """Whether creating the model takes more than a moment, to make files or convert adapters."""
    return needs_making(spec) or any(name.rpartition("/")[2] in _PEFT for name in spec.adapters)


def uploads_of(spec: ModelSpec) -> list[str]:
    """Return the digests of a model's source files, which may be deleted once it exists."""
    return [] if spec.from_model is not None else list(spec.files.values())


def build(
    blobs: Blobs,
    spec: ModelSpec,
    parent: StoredModel | None,
    report: Callable[[str], None],
    check: Callable[[Path], object],
    convert: Converter,
) -> Manifest:
    """Write the layers and the config as blobs, and return the manifest that names them.

    `check` is called with each new model file and raises ModelError for one that cannot be run; `convert`
    converts adapters to GGUF. The caller must hold the store's lock, so that no layer is pruned before the
    manifest is written. Raises RequestError and StoreError.
    """
    assembly = _Assembly(blobs, report, check)
    if parent is not None:
        assembly.inherit(parent, spec.replaced)
    elif spec.files:
        assembly.add_files(spec.files, origins=spec.origins)
    else:
        raise RequestError("neither 'from' or 'files' was specified")
    assembly.add_adapters(spec, convert)
    if spec.template:
        assembly.replace(media.TEMPLATE, spec.template.encode(), also=(media.PROMPT,))
    if spec.system:
        assembly.replace(media.SYSTEM, spec.system.encode())
    for text in spec.license:
        assembly.add(media.LICENSE, text.encode())
    parameters = {**(parent.params if parent else {}), **spec.parameters}
    if parameters:
        assembly.replace(media.PARAMS, _json(parameters, sort_keys=True, what="parameters"))
    if spec.messages:
        messages = [_message(item) for item in spec.messages]
        assembly.replace(media.MESSAGES, _json(messages, sort_keys=False, what="messages"))
    return assembly.finish(spec, parent)


class _Assembly:
    """The layers of a model while it is built."""

    def __init__(self, blobs: Blobs, report: Callable[[str], None], check: Callable[[Path], object]) -> None:
        self._blobs = blobs
        self._check = check
        self._report = report
        self._layers: list[ManifestLayer] = []
        self._facts: list[Facts] = []

    def inherit(self, parent: StoredModel, replaced: Mapping[str, str]) -> None:
        """Add the layers of the parent, or those that `replaced` them, recording it as their origin."""
        for given in parent.manifest.layers:
            layer = self._replacement(given, replaced.get(given.digest, given.digest))
            if not self._blobs.touch(layer.digest):
                # The bundled model's files are outside the store until a model is made from it.
                path = parent.files[layer.digest]
                if not path.is_file():
                    raise RequestError(
                        f"{parent.name} is incomplete: its blob {layer.digest} is missing; pull it again"
                    )
                self._blobs.add_file(path)
            if layer.media_type in _KINDS.values():
                path = self._blobs.path(layer.digest)
                with _named_for_clients(parent.name, layer.digest, path):
                    self._facts.append(facts_of(path))
            self._keep(
                ManifestLayer(
                    media_type=layer.media_type,
                    digest=layer.digest,
                    size=layer.size,
                    origin=parent.name,
                    name=layer.name,
                    scale=layer.scale,
                )
            )

    def _replacement(self, layer: ManifestLayer, digest: str) -> ManifestLayer:
        if digest == layer.digest:
            return layer
        size = self._blobs.path(digest).stat().st_size
        return ManifestLayer(media_type=layer.media_type, digest=digest, size=size, name=layer.name)

    def add_files(
        self, files: Mapping[str, str], only: str | None = None, origins: Mapping[str, str] | None = None
    ) -> None:
        """Add GGUF blobs, given as name -> digest; with `only`, all must be of that kind."""
        for file_name, given in files.items():
            check_file_name(file_name)
            digest = normalize_digest(given)
            if not self._blobs.has(digest):
                raise RequestError(f"{file_name}: blob {digest} is not in the store; upload it first")
            path = self._blobs.path(digest)
            with _named_for_clients(file_name, digest, path):
                with path.open("rb") as file:
                    magic = file.read(len(MAGIC))
                if magic != MAGIC:
                    named = file_name.lower().endswith(".gguf")
                    problem = "supplied file was not in GGUF format" if named else "unknown type"
                    raise RequestError(f"{problem}: {file_name}; convert the model to GGUF first")
                self._report("parsing GGUF")
                facts = facts_of(path)
                if facts.kind == "model":
                    self._check(path)
            if only is not None and facts.kind != only:
                raise RequestError(f"{file_name} is a {facts.kind}, not an {only}")
            self._facts.append(facts)
            self._keep(
                ManifestLayer(
                    media_type=_KINDS[facts.kind],
                    digest=digest,
                    size=path.stat().st_size,
                    origin=(origins or {}).get(file_name, str(path)),
                )
            )

    def add_adapters(self, spec: ModelSpec, convert: Converter) -> None:
        """Add the adapters of `spec` under their names, numbered in this order."""
        folders: dict[str, dict[str, str]] = {}
        given: dict[str, str | None] = {}  # files with their digests, and folders
        for file_name, digest in spec.adapters.items():
            check_file_name(file_name)
            folder, _, name = file_name.rpartition("/")
            if name in _PEFT:
                folders.setdefault(folder, {})[name] = digest
                given.setdefault(folder, None)
            else:
                given[file_name] = digest
        for place, file_digest in given.items():
            name = place.rpartition("/")[2]
            if file_digest is not None:
                self.add_files({place: file_digest}, only="adapter")
                self._name_last(place, name.removesuffix(".gguf"), spec)
                continue
            files = folders[place]
            if missing := next((file for file in _PEFT if file not in files), None):
                raise RequestError(f"{place or 'the adapter'} has no {missing}; PEFT saves both")
            self._add_converted(place or "adapter", files, convert)
            self._name_last(place, name or "adapter", spec)
        for name, scale in spec.adapter_scales.items():
            if name not in {*spec.adapters, *folders}:
                raise RequestError(f"adapter_scales: there is no adapter {shown(name)}")
            if not is_scale(scale):
                raise RequestError(
                    f"adapter_scales: {scale} of {shown(name)} is not between {-LARGEST_SCALE:g} and "
                    f"{LARGEST_SCALE:g}"
                )

    def _add_converted(self, name: str, files: Mapping[str, str], convert: Converter) -> None:
        model = next((layer for layer in reversed(self._layers) if layer.media_type == media.MODEL), None)
        if model is None:
            raise RequestError(f"{name}: an adapter needs a model; give one with 'from' or 'files'")
        given = {file: normalize_digest(digest) for file, digest in files.items()}
        for file, digest in given.items():
            if not self._blobs.has(digest):
                raise RequestError(f"{name}/{file}: blob {digest} is not in the store; upload it first")
        self._report("converting adapter")
        with tempfile.TemporaryDirectory(dir=self._blobs.scratch, prefix="tmp-") as scratch:
            made = Path(scratch) / "adapter.gguf"
            try:
                config, weights = (self._blobs.path(given[file]) for file in _PEFT)
                convert(config, weights, self._blobs.path(model.digest), made)
            except (GGUFError, ModelError) as error:
                reason = str(error)
                for file, digest in given.items():
                    reason = reason.replace(str(self._blobs.path(digest)), file)
                raise RequestError(f"{name} cannot be used: {reason}") from error
            except OSError as error:
                raise StoreError(f"{name} cannot be converted ({error.strerror})") from error
            digest, _ = self._blobs.add_file(made)
        path = self._blobs.path(digest)
        self._facts.append(facts_of(path))
        self._keep(
            ManifestLayer(media_type=media.ADAPTER, digest=digest, size=path.stat().st_size, origin=str(path))
        )

    def _name_last(self, given: str, name: str, spec: ModelSpec) -> None:
        """Give the last layer added the name used by requests, and its scale."""
        own = self._facts[-1].architecture
        of_model = next((facts.architecture for facts in self._facts if facts.kind == "model"), own)
        if own != of_model:
            raise RequestError(
                f"{shown(given)} is an adapter for {shown(own)}, but the model is {shown(of_model)}; use it "
                "with the model it was trained on"
            )
        if sum(layer.media_type == media.ADAPTER for layer in self._layers) > MAX_ADAPTERS:
            raise RequestError(f"a model can have at most {MAX_ADAPTERS} adapters")
        if any(layer.name == name for layer in self._layers if layer.media_type == media.ADAPTER):
            raise RequestError(f"two adapters are called {shown(name)}; rename one")
        scale = spec.adapter_scales.get(given, 1.0)
        self._layers[-1] = msgspec.structs.replace(self._layers[-1], name=name, scale=scale)

    def add(self, media_type: str, data: bytes) -> None:
        digest, new = self._blobs.add(data)
        self._report(f"{'creating new' if new else 'using existing'} layer {digest}")
        self._layers.append(ManifestLayer(media_type=media_type, digest=digest, size=len(data)))

    def replace(self, media_type: str, data: bytes, also: Sequence[str] = ()) -> None:
        """Add a layer, replacing all layers of its type and of the types in `also`."""
        self._layers = [
            layer for layer in self._layers if layer.media_type != media_type and layer.media_type not in also
        ]
        self.add(media_type, data)

    def finish(self, spec: ModelSpec, parent: StoredModel | None) -> Manifest:
        inherited = parent.config if parent else ModelConfig()
        first = self._facts[0] if self._facts else None
        digests = [layer.digest for layer in self._layers]
        config = ModelConfig(
            model_format=inherited.model_format or ("gguf" if first else ""),
            model_family=first.architecture if first else inherited.model_family,
            model_families=tuple(facts.architecture for facts in self._facts) or inherited.model_families,
            model_type=first.parameter_size if first else inherited.model_type,
            file_type=first.quantization if first else inherited.file_type,
            renderer=spec.renderer or inherited.renderer,
            parser=spec.parser or inherited.parser,
            requires=spec.requires or inherited.requires,
            capabilities=inherited.capabilities,
        )
        data = config.encode(digests)
        digest, new = self._blobs.add(data)
        self._report(f"{'creating new' if new else 'using existing'} layer {digest}")
        return Manifest(
            config=ManifestLayer(media_type=media.CONFIG, digest=digest, size=len(data)),
            layers=tuple(self._layers),
        )

    def _keep(self, layer: ManifestLayer) -> None:
        self._report(f"using existing layer {layer.digest}")
        self._layers.append(layer)


@contextlib.contextmanager
def _named_for_clients(name: str, digest: str, path: Path) -> Iterator[None]:
    """Turn errors about the blob at `path` into errors with the client's name for it.

    This includes parts of split models, since a part in the store cannot find the others.
    """
    try:
        yield
    except (GGUFError, ModelError) as error:
        reason = str(error).replace(str(path), digest).replace(path.name, digest)
        raise RequestError(f"{name} cannot be used: {reason}") from error
    except OSError as error:
        raise StoreError(f"{name} cannot be used: {digest} cannot be read ({error.strerror})") from error


def check_file_name(name: str) -> None:
    """Raise RequestError unless `name` is a plain relative path with forward slashes."""
    parts = name.split("/")
    if "\\" in name or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise RequestError(f'file path must be relative: "{name}"')


def _message(item: Mapping[str, Any]) -> dict[str, str]:
    role, content = item.get("role"), item.get("content") or ""
    if not isinstance(role, str) or not role or not isinstance(content, str):
        raise RequestError(f"messages: each message needs a role and a content string, not {dict(item)!r}")
    return {"role": role, "content": content}


def _json(value: Any, *, sort_keys: bool, what: str) -> bytes:
    try:
        return (gojson.dumps(value, sort_keys=sort_keys) + "\n").encode()
    except (TypeError, ValueError) as error:
        raise RequestError(f"{what}: {error}") from error
