"""Model families: the GGUF names of a model's settings and tensors, and the changes to its values.

A family is a table. Tensor names are the checkpoint's, with `{}` for numbers and without `.weight` or
`.bias`; the first number is the layer, the second the expert.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from puna.architectures import ARCHITECTURES, UNKNOWN
from puna.convert.checkpoint import Values
from puna.convert.config import Config
from puna.model.published import neighbours

#: Computes a tensor from another, with the same number of dimensions or not.
Change = Callable[[Values, Config], Values]
#: Splits one tensor into several.
Parting = Callable[[Values, Config], Sequence[Values]]
#: A setting's name or names in config.json, or a function that computes the value; None leaves the key out.
Key = str | tuple[str, ...] | Callable[[Config], Any]
#: The only value a setting may have, a tuple of such values, or a function that computes it.
Assumption = Any | Callable[[Config], Any]
#: What a tower is for.
Sense = Literal["vision", "audio"]
SENSES: Final[tuple[Sense, ...]] = ("vision", "audio")
#: Rotation types. A dynamic one is plain up to the training context, which is all that GGUF files claim.
PLAIN: Final = ("default", "none", "dynamic")
SCALED: Final = (*PLAIN, "linear", "yarn")
#: The start of a tensor's name within a layer.
_LAYER: Final = re.compile(r"(?:a\.|v\.|v\.global\.|enc\.|dec\.)?blk\.\d+\.(?:\d+\.)?")


@dataclass(frozen=True, slots=True)
class Split:
    """One tensor of a checkpoint that becomes several in a file."""

    targets: tuple[str, ...]
    parts: Parting


@dataclass(frozen=True, slots=True)
class Member:
    """One of several tensors of a checkpoint that are stacked in a file."""

    target: str
    number: int | None = None  # None: the last number in its name


#: A tensor's target; None leaves the tensor out.
Place = str | Split | Member | None


@dataclass(frozen=True, kw_only=True)
class Family:
    """Models named `hf` in config.json's `architectures`, and `architecture` in GGUF."""

    hf: tuple[str, ...]
    architecture: str
    keys: Mapping[str, Key] = field(default_factory=dict)  # beside the usual ones in `keys.py`
    names: Mapping[str, Place] = field(default_factory=dict)  # beside the usual ones in `plan.py`
    #: By the target's name within its layer; for reordering see `change`.
    changes: Mapping[str, Change] = field(default_factory=dict)
    extra: Callable[[Config], Mapping[str, Values]] = lambda config: {}  # tensors that only the file has
    tied: bool = False  # whether the output is the input embedding, if config.json does not say
    norm_offset: float = 0.0  # added to norms, whose checkpoint values are relative to it
    plain_norms: tuple[str, ...] = ()  # norms stored without an offset
    vocabulary: str = "auto"  # see `vocabulary.py`
    template: str = ""  # chat template in place of the published one
    pre: str = ""  # the pre-tokenizer's name, if several split text alike
    prefix: str = ""  # prepended to names that lack it
    dropped: tuple[str, ...] = ()  # prefixes of tensors left out of the file
    joined: tuple[str, ...] = ()  # tensors of the file whose members' rows follow one another
    kept: tuple[str, ...] = ()  # prefixes of the only tensors kept, spelled as in `names`; empty: all
    sense: Sense = "vision"  # of a tower
    alone: bool = False  # whether checkpoints have this tower and no text model
    section: str = ""  # of config.json with a tower's settings, if not "vision_config" or "audio_config"
    only_with: Mapping[str, str] = field(default_factory=dict)  # tensors left out of files that lack another
    rename: Callable[[str, Config], str] = lambda name, config: name  # applied before a name is looked up
    when: Callable[[Config], bool] = lambda config: True  # selects among families with the same names
    adapters: Callable[[Config], Mapping[str, Family]] = lambda config: {}  # in the checkpoint, by name
    of_target: bool = False  # whether it drafts for a model that has its vocabulary
    task: str = ""  # name and task of the adapter that PEFT saved beside the checkpoint
    #: Defaults of transformers that differ from what the tables would use.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    #: Required values of settings that no key carries; see `assumptions.py`.
    assumed: Mapping[str, Assumption] = field(default_factory=dict)
    #: Checks settings outside the text model's own, as `check_settings` does those.
    check_others: Callable[[Config, Collection[str]], list[str]] = lambda config, ignore: []
    harmless: tuple[str, ...] = ()  # settings without effect, beside the usual ones; `*` matches anything
    ropes: tuple[str, ...] = SCALED  # rotation types that readers support

    @property
    def tower_section(self) -> str:
        """The section of config.json with the settings of a tower."""
        return self.section or f"{self.sense}_config"

    def change(self, target: str) -> Change | None:
        """Return the change to apply to the file's tensor `target`."""
        layer = _LAYER.match(target)
        short = target[layer.end() :] if layer else target
        paired = ARCHITECTURES.get(self.architecture, UNKNOWN).rows == "paired"
        if paired and target.startswith("blk.") and short in PERMUTED:
            return PERMUTED[short]
        return self.changes.get(short)


def halves(values: Values, config: Config) -> Sequence[Values]:
    """Split gate and up of experts, which are stacked: [..., 2 * wide, hidden]."""
    middle = values.shape[-2] // 2
    return values[..., :middle, :], values[..., middle:, :]


def permuted(heads: Callable[[Config], int]) -> Change:
    """Return `neighbours` for the number of heads in the settings."""

    def change(values: Values, config: Config) -> Values:
        return neighbours(values, heads(config))

    return change


#: Changes of queries and keys for architectures whose kernels rotate adjacent rows.
PERMUTED: Mapping[str, Change] = {
    f"attn_{name}.{kind}": permuted(heads)
    for name, heads in (("q", lambda config: config.heads), ("k", lambda config: config.kv_heads))
    for kind in ("weight", "bias")
}
