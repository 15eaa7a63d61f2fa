"""What is known of one kind of model: what its settings and tensors are called in GGUF, and what changes.

A family is a table. Names of tensors are those of a checkpoint with `{}` for numbers, without `.weight` or
`.bias`; the first number is the layer's, a second one the expert's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from puna.architectures import ARCHITECTURES, UNKNOWN
from puna.convert.checkpoint import Values
from puna.convert.config import Config
from puna.model.published import neighbours

#: Makes another tensor of one, of the same number of dimensions or not.
Change = Callable[[Values, Config], Values]
#: Takes one tensor apart.
Parting = Callable[[Values, Config], Sequence[Values]]
#: A setting's names in config.json, or what computes a value; None leaves the key out.
Key = str | tuple[str, ...] | Callable[[Config], Any]
#: The only value of a setting that a file can stand for, several of them (a tuple), or what computes it.
Assumption = Any | Callable[[Config], Any]
#: Kinds of rotation. A dynamic one is plain up to the context of training, which is all that files promise.
PLAIN: Final = ("default", "none", "dynamic")
SCALED: Final = (*PLAIN, "linear", "yarn")
#: How names of what is in a layer begin.
_LAYER: Final = re.compile(r"(?:v\.|v\.global\.|enc\.|dec\.)?blk\.\d+\.(?:\d+\.)?")


@dataclass(frozen=True, slots=True)
class Split:
    """One tensor of a checkpoint that is several of a file."""

    targets: tuple[str, ...]
    parts: Parting


@dataclass(frozen=True, slots=True)
class Member:
    """One of several tensors of a checkpoint that are a stack in a file."""

    target: str
    number: int | None = None  # None: the last one in its name


#: Where a tensor goes; None: it is left out.
Place = str | Split | Member | None


@dataclass(frozen=True, kw_only=True)
class Family:
    """Models that config.json's `architectures` calls `hf`, and a file `architecture`."""

    hf: tuple[str, ...]
    architecture: str
    keys: Mapping[str, Key] = field(default_factory=dict)  # beside the usual; see `keys.py`
    names: Mapping[str, Place] = field(default_factory=dict)  # beside the usual; see `names.py`
    #: By the target's name within its layer; beside what is reordered, see `change`.
    changes: Mapping[str, Change] = field(default_factory=dict)
    extra: Callable[[Config], Mapping[str, Values]] = lambda config: {}  # tensors of the file alone
    tied: bool = False  # whether the output is the input's table where config.json does not say it
    norm_offset: float = 0.0  # what a file's norms have and the checkpoint's lack
    plain_norms: tuple[str, ...] = ()  # those that lack nothing
    vocabulary: str = "auto"  # see `vocabulary/`
    pre: str = ""  # the pre-tokenizer's name, where several split text alike
    prefix: str = ""  # before names that lack it
    dropped: tuple[str, ...] = ()  # beginnings of names of what is not of the file
    kept: tuple[str, ...] = ()  # of what is alone of it, if not all is; as `names` have them
    only_with: Mapping[str, str] = field(default_factory=dict)  # tensors left out of files without another
    rename: Callable[[str, Config], str] = lambda name, config: name  # before it is looked up
    when: Callable[[Config], bool] = lambda config: True  # of several with the same names
    adapters: Callable[[Config], Mapping[str, Family]] = lambda config: {}  # within the checkpoint, by name
    #: What transformers takes where config.json lacks a setting, and the tables would take something else.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    #: Values of settings that no key carries; see `assumptions.py`.
    assumed: Mapping[str, Assumption] = field(default_factory=dict)
    #: Checks settings that are not the text model's own, as `check_settings` does those.
    check_others: Callable[[Config, Collection[str]], list[str]] = lambda config, ignore: []
    harmless: tuple[str, ...] = ()  # settings that change nothing, beside the usual; `*` is anything
    ropes: tuple[str, ...] = SCALED  # kinds of rotation that readers compute

    def change(self, target: str) -> Change | None:
        """What is done to what becomes the tensor `target` of the file."""
        layer = _LAYER.match(target)
        short = target[layer.end() :] if layer else target
        paired = ARCHITECTURES.get(self.architecture, UNKNOWN).rows == "paired"
        if paired and target.startswith("blk.") and short in PERMUTED:
            return PERMUTED[short]
        return self.changes.get(short)


def halves(values: Values, config: Config) -> Sequence[Values]:
    """Gate and up of experts, one above the other: [..., 2 * wide, hidden]."""
    middle = values.shape[-2] // 2
    return values[..., :middle, :], values[..., middle:, :]


def permuted(heads: Callable[[Config], int]) -> Change:
    """`neighbours` of as many heads as the settings say."""

    def change(values: Values, config: Config) -> Values:
        return neighbours(values, heads(config))

    return change


#: Changes of queries and keys for architectures whose kernels rotate neighbouring rows.
PERMUTED: Mapping[str, Change] = {
    f"attn_{name}.{kind}": permuted(heads)
    for name, heads in (("q", lambda config: config.heads), ("k", lambda config: config.kv_heads))
    for kind in ("weight", "bias")
}
