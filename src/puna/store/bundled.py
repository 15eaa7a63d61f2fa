"""`demo`: the model bundled with the package, which appears as if it were in the store."""

from __future__ import annotations

import logging
from functools import lru_cache
from pathlib import Path

from puna.errors import GGUFError
from puna.store import manifest as media
from puna.store.blobs import digest_of, file_digest
from puna.store.config import ModelConfig
from puna.store.facts import facts_of
from puna.store.manifest import Layer, Manifest
from puna.store.names import ModelName
from puna.store.stored import StoredModel

log = logging.getLogger(__name__)

DEMO_NAME = ModelName.parse("demo")
DEMO_FILE = Path(__file__).resolve().parents[1] / "demo" / "demo.gguf"
DEMO_PARAMS = DEMO_FILE.with_name("params.json")


def is_demo(name: ModelName) -> bool:
    return name.folded == DEMO_NAME.folded


def bundled_model(path: Path = DEMO_FILE) -> StoredModel | None:
    """The bundled model, or None if this installation has none or it is damaged."""
    try:
        status = path.stat()
        return _described(path, status.st_mtime_ns, status.st_size)
    except FileNotFoundError:
        return None
    except (OSError, GGUFError) as error:
        log.warning("the bundled model cannot be used: %s", error)
        return None


@lru_cache(maxsize=4)
def _described(path: Path, mtime_ns: int, size: int) -> StoredModel:
    facts = facts_of(path)
    layer = Layer(media_type=media.MODEL, digest=file_digest(path), size=size)
    config = ModelConfig(
        model_format="gguf",
        model_family=facts.architecture,
        model_families=(facts.architecture,),
        model_type=facts.parameter_size,
        file_type=facts.quantization,
    )
    encoded = config.encode([layer.digest])
    config_layer = Layer(media_type=media.CONFIG, digest=digest_of(encoded), size=len(encoded))
    params = Layer(media_type=media.PARAMS, digest=file_digest(DEMO_PARAMS), size=DEMO_PARAMS.stat().st_size)
    manifest = Manifest(config=config_layer, layers=(layer, params))
    return StoredModel(
        model_name=DEMO_NAME,
        manifest=manifest,
        config=config,
        digest=digest_of(manifest.encode()).removeprefix("sha256:"),
        modified_ns=mtime_ns,
        files={layer.digest: path, params.digest: DEMO_PARAMS},
        bundled=True,
    )
