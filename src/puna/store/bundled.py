"""The models bundled with the package, which appear to be in the store."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from puna.errors import GGUFError
from puna.store import manifest as media
from puna.store.blobs import digest_of, file_digest
from puna.store.config import ModelConfig
from puna.store.facts import facts_of
from puna.store.manifest import Manifest, ManifestLayer
from puna.store.names import ModelName
from puna.store.stored import StoredModel

log = logging.getLogger(__name__)

_FOLDER: Final = Path(__file__).resolve().parents[1] / "demo"
DEMO_FILE: Final = _FOLDER / "demo.gguf"


@dataclass(frozen=True)
class Bundled:
    """A bundled model's name and files."""

    name: ModelName
    file: Path
    params: Path
    projector: Path | None = None  # the file of its tower, if it is not in the model's own

    def described(self) -> StoredModel | None:
        """Return the model, or None if this installation lacks it or it is damaged."""
        try:
            statuses = [each.stat() for each in (self.file, self.projector) if each is not None]
            return _described(self, tuple((status.st_mtime_ns, status.st_size) for status in statuses))
        except FileNotFoundError:
            return None
        except (OSError, GGUFError) as error:
            log.warning("the bundled model %s cannot be used: %s", self.name, error)
            return None


DEMO: Final = Bundled(ModelName.parse("demo"), DEMO_FILE, _FOLDER / "params.json")
DEMO_VISION: Final = Bundled(
    ModelName.parse("demo-vision"), _FOLDER / "demo-vision.gguf", _FOLDER / "demo-vision-params.json"
)
DEMO_AUDIO: Final = Bundled(
    ModelName.parse("demo-audio"), _FOLDER / "demo-audio.gguf", _FOLDER / "demo-audio-params.json",
    _FOLDER / "demo-audio-mmproj.gguf",
)  # fmt: skip
BUNDLED: Final = (DEMO, DEMO_VISION, DEMO_AUDIO)


def bundled_models() -> list[StoredModel]:
    """Return the bundled models that this installation has."""
    return [model for each in BUNDLED if (model := each.described()) is not None]


def bundled_model(name: ModelName) -> StoredModel | None:
    """Return the bundled model called `name`, or None."""
    found = next((each for each in BUNDLED if each.name.folded == name.folded), None)
    return found.described() if found is not None else None


@lru_cache(maxsize=8)
def _described(bundled: Bundled, statuses: tuple[tuple[int, int], ...]) -> StoredModel:
    """Return the model, whose files have these times in nanoseconds and sizes in bytes."""
    path, options = bundled.file, bundled.params
    facts = facts_of(path)
    files = {media.MODEL: path, media.PROJECTOR: bundled.projector, media.PARAMS: options}
    layers = {
        ManifestLayer(media_type=kind, digest=file_digest(file), size=file.stat().st_size): file
        for kind, file in files.items()
        if file is not None
    }
    config = ModelConfig(
        model_format="gguf",
        model_family=facts.architecture,
        model_families=(facts.architecture,),
        model_type=facts.parameter_size,
        file_type=facts.quantization,
    )
    encoded = config.encode([layer.digest for layer in layers if layer.media_type != media.PARAMS])
    config_layer = ManifestLayer(media_type=media.CONFIG, digest=digest_of(encoded), size=len(encoded))
    manifest = Manifest(config=config_layer, layers=tuple(layers))
    return StoredModel(
        model_name=bundled.name,
        manifest=manifest,
        config=config,
        digest=digest_of(manifest.encode()).removeprefix("sha256:"),
        modified_ns=max(mtime_ns for mtime_ns, _ in statuses),
        files={layer.digest: file for layer, file in layers.items()},
        bundled=True,
    )
