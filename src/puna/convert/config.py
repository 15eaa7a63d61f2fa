"""A model's settings (`config.json`), read by name with their types checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final, Self

from puna.convert.checkpoint import Checkpoint, Values, added_tokens
from puna.errors import ConversionError, shown

#: Largest plausible number of layers, or of values per head: many times that of any model. More means damage.
_MAX_COUNT: Final = 1 << 12
_LARGEST_HEAD: Final = 1 << 14


def _image_settings_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the checkpoint's image preprocessing settings."""
    found: dict[str, Any] = {}
    for name in ("preprocessor_config.json", "processor_config.json"):
        given = checkpoint.json(name)
        inner = given.get("image_processor")
        found |= given | (inner if isinstance(inner, dict) else {})
    return found


class _Rotation(Mapping[str, Any]):
    """The settings of a rotation, each with the names in config.json that give it; reads are recorded."""

    def __init__(self, found: Mapping[str, tuple[Any, list[str]]], note: Callable[..., None]) -> None:
        self._found, self._note = found, note

    def __getitem__(self, key: str) -> Any:
        value, names = self._found[key]
        self._note(*names)
        return value

    def __contains__(self, key: object) -> bool:
        return key in self._found

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


class Config:
    """Settings of the text model, completed by those of the whole model.

    With `of_tower`, settings of a tower, with those of the whole model and of image preprocessing
    beside them. Tracks which settings were read, because the rest must be accounted for (`assumptions.py`).
    """

    def __init__(self, raw: Mapping[str, Any], checkpoint: Checkpoint | None = None) -> None:
        self._checkpoint = checkpoint  # for settings outside config.json
        parts = ("text_config", "llm_config", "language_config", "lfm")
        nested = [raw[key] for key in parts if isinstance(raw.get(key), dict)]
        self.heads_ahead = 0  # extra layers that predict tokens after the next one, counted from the tensors
        self.has_output = False  # whether the file gets an output that is not the input's table
        self.own: Mapping[str, Any] = nested[0] if nested else raw
        self.raw: dict[str, Any] = {**raw, **self.own}
        self.read: set[str] = set()  # names of the settings read, dotted if nested
        self.outside: set[str] = set()  # settings read that are outside the text model's own
        self.defaults: dict[str, Any] = {}  # values for settings that config.json lacks
        self.whole: Mapping[str, Any] = raw
        self._added: dict[str, int] = {}
        self.target: Config | None = None  # settings of the model that this one drafts for

    @classmethod
    def of_tower(cls, checkpoint: Checkpoint, section: str) -> Self:
        """Return the settings of a tower in a `section` of config.json. Raises ConversionError without it."""
        own = checkpoint.config.get(section)
        if not isinstance(own, dict):
            raise ConversionError(f"config.json lacks '{section}'")
        config = cls(checkpoint.config, checkpoint)
        config.raw = own
        config._image_settings = _image_settings_of(checkpoint)
        config._added = {text: id for id, (text, _) in added_tokens(checkpoint).items()}
        return config

    @cached_property
    def _image_settings(self) -> dict[str, Any]:
        return {} if self._checkpoint is None else _image_settings_of(self._checkpoint)

    @property
    def text(self) -> Config:
        """The settings of the text model that the tower belongs to."""
        return Config(self.whole)

    def image_setting(self, name: str, otherwise: Any = None) -> Any:
        """Return a setting of image preprocessing. Raises ConversionError if it is missing."""
        value = self._image_settings.get(name, otherwise)
        if value is None:
            raise ConversionError(
                f"preprocessor_config.json lacks '{name}', which says how images are prepared"
            )
        return value

    def feature_setting(self, name: str) -> Any:
        """Return a setting of the extraction of audio features, or None."""
        inner = self._image_settings.get("feature_extractor")
        return (inner if isinstance(inner, dict) else self._image_settings).get(name)

    def added_token_id(self, text: str) -> int:
        """Return the id of an added token. Raises ConversionError if there is no such token."""
        if text not in self._added:
            raise ConversionError(f"tokenizer.json has no token {text}, which separates rows of an image")
        return self._added[text]

    def is_called(self, name: str) -> bool:
        """See `Checkpoint.is_called`."""
        return self._checkpoint is not None and self._checkpoint.is_called(name)

    def generation_setting(self, name: str) -> Any:
        """Return a setting of `generation_config.json`, or None."""
        return None if self._checkpoint is None else self._checkpoint.json("generation_config.json").get(name)

    def token_id(self, text: str) -> int:
        """Return the id of a token of the vocabulary. Raises ConversionError if there is no such token."""
        assert self._checkpoint is not None
        model = self._checkpoint.json("tokenizer.json").get("model")
        vocabulary = model.get("vocab") if isinstance(model, dict) else None
        id = vocabulary.get(text) if isinstance(vocabulary, dict) else None
        if type(id) is not int:
            raise ConversionError(f"tokenizer.json has no token {shown(text)}")
        return id

    def of_layers(self, parameter: str) -> list[float]:
        """Return the parameter of each layer, one number. Raises ConversionError if it is anything else."""
        found = []
        for layer in range(self.layers):
            name = f"model.layers.{layer}.{parameter}"
            values = self.tensor(name)
            if values.size != 1:
                raise ConversionError(f"tensor {shown(name)} should be one number, but has {values.size}")
            found.append(float(values.reshape(-1)[0]))
        return found

    def tensor(self, name: str) -> Values:
        """Return the values of a tensor, whose name may follow "model.". Raises ConversionError."""
        if (values := self.optional_tensor(name)) is None:
            raise ConversionError(f"tensor {shown(name)} is missing")
        return values

    def integers(self, ending: str) -> list[int]:
        """Return the exact numbers of the one tensor of integers whose name has this ending.

        None are known of settings without a checkpoint. Raises ConversionError unless there is one.
        """
        if self._checkpoint is None:
            return []
        found = [name for name in self._checkpoint.tensors if name.endswith(ending)]
        if len(found) != 1:
            raise ConversionError(f"the checkpoint has {len(found)} tensors '{ending}' instead of one")
        return self._checkpoint.integers(found[0])

    def count_rows(self, part: str) -> int:
        """Return the rows of all tensors that have `part` in their names; 0 without a checkpoint."""
        tensors = {} if self._checkpoint is None else self._checkpoint.tensors
        return sum(tensors[name].shape[0] for name in tensors if part in name and tensors[name].shape)

    def optional_tensor(self, name: str) -> Values | None:
        """Return the values of a tensor, whose name may follow "model.", or None if there is none."""
        assert self._checkpoint is not None
        for full in (name, f"model.{name}"):
            if full in self._checkpoint.tensors:
                return self._checkpoint.values(full)
        return None

    def add_defaults(self, defaults: Mapping[str, Any]) -> None:
        """Use `defaults` for settings that config.json lacks, as transformers does.

        A default rotation applies only if config.json has no rotation under either name.
        """
        rotates = any(self.raw.get(name) for name in ("rope_parameters", "rope_scaling"))
        for name, value in defaults.items():
            if name not in self.raw or (name == "rope_parameters" and not rotates):
                self.defaults[name] = value
        if rotates:
            self.defaults.pop("rope_parameters", None)
        self.raw = {**self.raw, **self.defaults}

    def get(self, *names: str, otherwise: Any = None) -> Any:
        """Return the first of the settings that is present and not null, or `otherwise`.

        All of the names count as read. A dot leads to a nested setting. A default of transformers belongs to
        `Family.defaults`, because null is not always a missing setting.
        """
        found = [name for name in names if self.peek(name) is not None]
        self._note(*found[:1], *names)
        return self.peek(found[0]) if found else otherwise

    def _note(self, *names: str) -> None:
        """Mark settings as read; the first is the one in effect."""
        self.read.update(names)
        first = names[0].partition(".")[0]
        if self.own is self.whole.get("text_config") and first in self.whole and first not in self.own:
            self.outside.add(names[0])

    def peek(self, name: str) -> Any:
        """Return a setting or None without marking it as read. A dot leads to a nested setting."""
        found: Any = self.raw
        for part in name.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        return found

    def __getitem__(self, name: str) -> Any:
        value = self.get(name)
        if value is None:
            raise ConversionError(f"config.json lacks '{name}'")
        return value

    def count(self, *names: str) -> int:
        """Return a required number of at least 1."""
        value = self.get(*names)
        if type(value) is not int or value < 1:
            raise ConversionError(f"config.json: '{names[0]}' is {shown(value)}, not a number of at least 1")
        return value

    def bounded_count(self, *names: str, most: int = _MAX_COUNT) -> int:
        """Return a required number of at least 1 and at most `most`, since lists of that length are built."""
        value = self.count(*names)
        if value > most:
            raise ConversionError(f"config.json: '{names[0]}' is {value}; the maximum is {most}")
        return value

    @property
    def layers(self) -> int:
        kinds = self.get("layers_block_type")
        if isinstance(kinds, list) and kinds:
            return len(kinds)
        return self.bounded_count(
            "num_hidden_layers", "n_layers", "n_layer", "num_layers", "num_transformer_layers"
        )

    @property
    def heads(self) -> int:
        return self.count("num_attention_heads", "n_heads", "n_head", "num_heads")

    @property
    def kv_heads(self) -> int:
        return self.count("num_key_value_heads", "n_kv_heads", "num_attention_heads", "n_head", "num_heads")

    @property
    def head_size(self) -> int:
        if self.get("head_dim"):
            return self.bounded_count("head_dim", most=_LARGEST_HEAD)
        return (
            self.bounded_count("hidden_size", "n_embd", "d_model", most=_MAX_COUNT * _LARGEST_HEAD)
            // self.heads
        )

    @property
    def rope(self) -> Mapping[str, Any]:
        """The rotation of layers that see all positions: `rope_type`, `rope_theta`, factors."""
        return _Rotation(self._rotations(), self._note)

    @property
    def local_rope_theta(self) -> float | None:
        """The rotation base of sliding-window layers, if they have their own."""
        own: float | None = self.get(
            "rope_parameters.sliding_attention.rope_theta", "rope_scaling.sliding_attention.rope_theta"
        )
        outside: float | None = self.get(
            "local_rope_theta", "rope_local_theta", "rope_local_base_freq", "swa_rope_theta"
        )
        return outside if own is None else own

    def _rotations(self) -> dict[str, tuple[Any, list[str]]]:
        """Return each setting of the rotation with the names that give it, the effective one first."""
        place = next((key for key in ("rope_parameters", "rope_scaling") if self.raw.get(key)), "")
        given = self.raw.get(place) or {}
        if not isinstance(given, dict):
            raise ConversionError(f"config.json: '{place}' is {shown(given)}")
        for kind in ("full_attention", "compress"):
            if isinstance(given.get(kind), dict):
                place, given = f"{place}.{kind}", given[kind]
        found = {key: (value, [f"{place}.{key}"]) for key, value in given.items() if value is not None}
        if "type" in found:
            found.setdefault("rope_type", found["type"])
            found["rope_type"][1].append(f"{place}.type")
        outside = {
            "rope_theta": ("global_rope_theta", "rope_theta", "rotary_emb_base"),
            "partial_rotary_factor": ("partial_rotary_factor", "rope_pct"),
            "original_max_position_embeddings": ("original_max_position_embeddings",),
        }
        for key, names in outside.items():
            for name in names:
                if (value := self.raw.get(name)) is not None:
                    found.setdefault(key, (value, []))[1].append(name)
        return found

    def windows(self) -> list[bool] | None:
        """Return, for each layer, whether it is windowed; None if config.json does not say."""
        kinds = self.get("layer_types")
        return [kind == "sliding_attention" for kind in kinds] if isinstance(kinds, list) else None
