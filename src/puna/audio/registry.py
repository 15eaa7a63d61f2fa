"""Audio tower classes by the kind a file declares; only the requested module is imported."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from puna.vision.registry import check_projector, has_own_tower, is_read_by

if TYPE_CHECKING:
    from puna.audio.tower import AudioTower
    from puna.gguf import GGUFFile

#: Towers in files of their own, by `clip.projector_type`: "module:Class" in `towers/`.
_PROJECTORS: Final = {
    "gemma3na": "gemma3n:Gemma3nAudio",
    "gemma4a": "gemma4:Gemma4Audio",
    "gemma4ua": "gemma4_unified:Gemma4UnifiedAudio",
    "granite_speech": "granite_speech:GraniteSpeechAudio",
    "lfm2a": "lfm2_audio:Lfm2Audio",
    "qwen2.5o": "qwen2_audio:Qwen25OmniAudio",
    "qwen2a": "qwen2_audio:Qwen2Audio",
    "qwen3a": "qwen3_asr:Qwen3Audio",
    "qwen3omni": "qwen3_asr:Qwen3OmniAudio",
    "ultravox": "ultravox:UltravoxAudio",
    "voxtral": "voxtral:VoxtralAudio",
}
#: Kinds of towers that read recordings in another way if a vision tower is beside them, as in Omni models.
_BESIDE_VISION: Final = {"qwen2a": "qwen2.5o", "qwen3a": "qwen3omni"}


def hearing_type(file: GGUFFile) -> str:
    """Return the kind of a projector's audio tower: the declared type, unless a vision tower changes it.

    It is "" if there is none, or none of its tensors beside a vision tower.
    """
    if file.get("audio.block_count") is None:
        return ""
    if has_own_tower(file) and not any(name.startswith(("a.", "mm.a.")) for name in file.tensors):
        return ""
    kinds = (file.get(key) for key in ("audio.projector_type", "projector_type"))
    kind = next((kind for kind in kinds if isinstance(kind, str)), "")
    return _BESIDE_VISION.get(kind, kind) if has_own_tower(file) else kind


def audio_tower_beside(file: GGUFFile, architecture: str) -> type[AudioTower] | None:
    """Return the class of the audio tower in a projector's file, for text models of `architecture`.

    Returns None if there is none, or one that they do not read beside a vision tower. Raises
    `UnsupportedModelError`.
    """
    kind = hearing_type(file)
    if not kind or (has_own_tower(file) and not is_read_by(kind, architecture)):
        return None
    check_projector(file, kind, _PROJECTORS, architecture)
    module, _, name = _PROJECTORS[kind].partition(":")
    tower: type[AudioTower] = getattr(importlib.import_module(f"puna.audio.towers.{module}"), name)
    return tower
