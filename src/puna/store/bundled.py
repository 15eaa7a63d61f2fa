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

    def described(self) -> StoredModel | None:
        """Return the model, or None if this installation lacks it or it is damaged."""
        try:
            status = self.file.stat()
            return _described(self, status.st_mtime_ns, status.st_size)
        except FileNotFoundError:
            return None
        except (OSError, GGUFError) as error:
            log.warning("the bundled model %s cannot be used: %s", self.name, error)
            return None


DEMO: Final = Bundled(ModelName.parse("demo"), DEMO_FILE, _FOLDER / "params.json")
DEMO_VISION: Final = Bundled(
    ModelName.parse("demo-vision"), _FOLDER / "demo-vision.gguf", _FOLDER / "demo-vision-params.json"
)
BUNDLED: Final = (DEMO, DEMO_VISION)


def bundled_models() -> list[StoredModel]:
    """Return the bundled models that this installation has."""
    return [model for each in BUNDLED if (model := each.described()) is not None]


def bundled_model(name: ModelName) -> StoredModel | None:
    """Return the bundled model called `name`, or None."""
    found = next((each for each in BUNDLED if each.name.folded == name.folded), None)
    return found.described() if found is not None else None


@lru_cache(maxsize=8)
def _described(bundled: Bundled, mtime_ns: int, size: int) -> StoredModel:
    path = bundled.file
    facts = facts_of(path)
    layer = ManifestLayer(media_type=media.MODEL, digest=file_digest(path), size=size)
    config = ModelConfig(
        model_format="gguf",
        model_family=facts.architecture,
        model_families=(facts.architecture,),
        model_type=facts.parameter_size,
        file_type=facts.quantization,
    )
    encoded = config.encode([layer.digest])
    config_layer = ManifestLayer(media_type=media.CONFIG, digest=digest_of(encoded), size=len(encoded))
    options = bundled.params
    params = ManifestLayer(media_type=media.PARAMS, digest=file_digest(options), size=options.stat().st_size)
    manifest = Manifest(config=config_layer, layers=(layer, params))
    return StoredModel(
        model_name=bundled.name,
        manifest=manifest,
        config=config,
        digest=digest_of(manifest.encode()).removeprefix("sha256:"),
        modified_ns=mtime_ns,
        files={layer.digest: path, params.digest: options},
        bundled=True,
    )
