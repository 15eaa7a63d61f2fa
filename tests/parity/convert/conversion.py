"""Comparison of our converter with llama.cpp's on the same folder, key by key and tensor by tensor.

"Ours" is Puna's converter or its file, "theirs" llama.cpp's. Their converter comes with the source that
`make test-peers` builds llama.cpp from; LLAMA_CPP names another.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import dropwhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from puna.convert import convert, convert_tower
from puna.gguf import FileType, open_gguf
from tests.convert.checkpoints import save_tokenizer, saved
from tests.model.models.parity import original
from tests.model.models.test_decoders import MODELS
from tests.tiny.heads import MODELS as HEADS
from tests.tiny.heads import save_heads
from tests.tiny.lfm2 import TinyLfm2
from tests.tiny.llama import LLAMA3_ROPE, TinyLlama
from tests.tiny.llama4 import TinyLlama4
from tests.tiny.remote_code import CHECKPOINTS
from tests.tiny.vision.models import VISION_MODELS

SOURCE = Path(os.environ.get("LLAMA_CPP", ".venv-peers/llama.cpp"))
PEERS = [
    pytest.mark.peers,
    pytest.mark.skipif(
        not (SOURCE / "convert_hf_to_gguf.py").is_file(),
        reason="there is no source of llama.cpp: run make test-peers",
    ),
]

DECODERS: dict[str, Any] = {
    "llama": TinyLlama(),
    "llama 3": TinyLlama(tied=True, rope_scaling=LLAMA3_ROPE),
    "mixtral": TinyLlama(experts=4),
    "lfm2": TinyLfm2(),
    "lfm2moe": TinyLfm2(experts=4),
    "llama4": TinyLlama4(),
    **MODELS,
    **CHECKPOINTS,
}
#: Lineages of `puna.convert.families`, by the first word of a model's name; all others are small ones.
LINEAGES = {
    "compressed": {"deepseek4"},
    "convolutional": {"lfm2", "lfm2moe"},
    "delta": {"qwen35", "qwen35moe", "qwen3next", "qwen4exp", "kimi-linear", "bailingmoe3", "glm5-next"},
    "gemma": {"gemma", "gemma2", "gemma3n", "gemma4"},
    "hybrids": {"nemotron_h", "nemotron_h_moe", "granitehybrid"},
    "latent": {"deepseek2", "deepseek32", "glm-dsa", "glm4moelite", "hy_v4", "mistral4"},
    "llama": {"llama", "mixtral", "granite", "smollm3", "seed_oss", "exaone4", "phi3", "arcee", "apertus"},
    "llama4": {"llama4"},
    "mamba": {"mamba", "mamba2", "granitemoe", "falcon-h1", "jamba"},
    "qwen": {"qwen2", "qwen2moe", "qwen3", "qwen3moe", "mimo2"},
    "rwkv": {"rwkv7", "arwkv7"},
}
SMALL = "small_lineages"
#: Models whose prediction heads their converter omits, or miscounts: it always writes three for MiMo. It
#: reads Step 3.5 only as published, which has a test of its own.
UNCOUNTED = ("deepseek2", "glm4moelite", "mimo2", "step35")
#: Keys our files add or write differently; docs/models-of-your-own.md explains why.
OURS = {
    "tokenizer.ggml.eos_token_ids", "general.name", "expert_weights_norm", "norm_top_k_prob",
    "general.quantization_version", "tokenizer.ggml.pre",
}  # fmt: skip
#: Keys of their files only: guesses from folder names, and keys without meaning for the architecture.
THEIRS = (
    "general.size_label", "general.basename", "general.finetune", "general.version", "general.organization",
    "general.tags", "general.languages", "general.license", "general.name", "general.sampling",
    "tensor_data_layout",
)  # fmt: skip
#: The tensor of Pixtral that their reader needs and their converter omits.
OURS_ALONE = "v.token_embd.img_break"
#: Tensors their converter leaves flat, although their reader multiplies channels by them.
FLAT = "layer_scale.gamma"
#: Prefixes of keys and tensors of audio encoders, which only some tests compare.
SOUND = ("a.", "mm.a.", "audio.", "has_audio_encoder")
#: The tensor their converter always stores as F16.
HALVES = "mm.input_projection.weight"
#: A change that keeps their converter from reading the config through transformers, which completes it.
UNKNOWN = {"model_type": "as published"}
#: Tensor names of published vision towers, as opposed to those transformers saves.
WITHIN = {r"vision_tower\.(?!vision_model)": "vision_tower.vision_model."}


@dataclass(frozen=True)
class Published:
    """Differences between a published checkpoint and the one that transformers saves."""

    #: Returns the changes to config.json; None removes a key.
    changes: Callable[[dict[str, Any]], dict[str, Any]] = lambda config: {}
    renamed: Mapping[str, str] = field(default_factory=dict)  # tensor names: expression, replacement
    transposed: tuple[str, ...] = ()  # endings of the names of tensors whose last two axes are swapped


@dataclass(frozen=True)
class Lineage:
    """The decoders of some lineages, and how to compare their conversions."""

    lineages: tuple[str, ...]
    published: Mapping[str, Published] = field(default_factory=dict)  # by name of the transformers class
    #: By architecture: keys where the two converters differ. We also write what readers would assume, and
    #: put all end tokens into one list.
    differing: Mapping[str, Collection[str]] = field(default_factory=dict)
    #: By name: why their converter fails on the model, or changes it.
    failing: Mapping[str, str] = field(default_factory=dict)

    @property
    def decoders(self) -> list[str]:
        """Return the names of the decoders that both converters convert, in current layouts."""
        return [
            name
            for name in DECODERS
            if self._has(name) and "first files" not in name and name not in self.failing
        ]

    @property
    def heads(self) -> list[str]:
        """Return the names of the models whose prediction heads both converters convert."""
        return [name for name in HEADS if self._has(name) and name not in UNCOUNTED]

    def _has(self, name: str) -> bool:
        first_word = re.split("[ ,]", name)[0]
        known = (lineage for lineage, words in LINEAGES.items() if first_word in words)
        return next(known, SMALL) in self.lineages

    def as_published(self, folder: Path) -> Path:
        """Rewrite the checkpoint in `folder` to look like a published one; return the folder."""
        path = folder / "config.json"
        config = json.loads(path.read_text())
        publication = self.published.get(config["architectures"][0], Published())
        changes = publication.changes(config)
        lacking = [name for name, value in changes.items() if value is None]
        config |= changes
        path.write_text(json.dumps({name: value for name, value in config.items() if name not in lacking}))
        weights = folder / "model.safetensors"
        if publication.transposed:
            tensors = load_file(weights)
            for name in tensors:
                if name.endswith(publication.transposed):
                    tensors[name] = np.ascontiguousarray(tensors[name].swapaxes(-1, -2))
            save_file(tensors, weights)
        for before, after in publication.renamed.items():
            tensors = {re.sub(before, after, name): values for name, values in load_file(weights).items()}
            save_file(tensors, weights)
        return folder

    def check_decoder(self, name: str, folder: Path, *options: str) -> None:
        """Check that both converters make the same file of the decoder `name`."""
        checkpoint = self.as_published(saved(folder / "checkpoint", original(DECODERS[name])))
        convert(checkpoint, folder / "ours.gguf", FileType.F32)
        self.check_same(folder / "ours.gguf", theirs(checkpoint, folder / "theirs.gguf", *options))

    def check_heads(self, name: str, folder: Path) -> None:
        """Check that both converters write the prediction heads of the model `name` alike."""
        tiny = HEADS[name]
        checkpoint = save_heads(folder / "checkpoint", tiny, original(tiny))
        convert(checkpoint, folder / "ours.gguf", FileType.F32)
        self.check_same(folder / "ours.gguf", theirs(checkpoint, folder / "theirs.gguf"))

    def check_vision(
        self,
        name: str,
        folder: Path,
        *,
        text: bool = True,
        sizes: Mapping[str, int] = {},
        apart: Collection[str] = (),
        called: tuple[str, str] = ("", ""),
    ) -> None:
        """Check that both converters write the vision tower of `name` alike, and its text model if `text`.

        The tiny model has other `sizes`, `apart` are keys that may differ, and `called` is the part of tensor
        names that differs: ours, theirs.
        """
        tiny = VISION_MODELS[name]()
        for size, value in sizes.items():
            setattr(tiny, size, value)
        tiny.layers = max(tiny.layers, 4)  # theirs rejects numbers in names beyond the number of layers
        checkpoint = saved(folder / "checkpoint", original(tiny), tokenizer=False)
        part = ["<|part|>"] if hasattr(tiny, "part_id") else []
        save_tokenizer(checkpoint, markers=[*tiny.markers, *part])
        (checkpoint / "preprocessor_config.json").write_text(json.dumps(tiny.pictures))
        self.as_published(checkpoint)
        assert convert_tower(checkpoint, folder / "ours.gguf", FileType.F32)
        other = theirs(checkpoint, folder / "theirs.gguf", "--mmproj")
        self.check_same(folder / "ours.gguf", other, called=called, apart=apart)
        if text:
            convert(checkpoint, folder / "text.gguf", FileType.F32)
            self.check_same(folder / "text.gguf", theirs(checkpoint, folder / "their text.gguf"))

    def check_same(
        self,
        first: Path,
        second: Path,
        *,
        unread: Collection[str] = (),
        alone: Collection[str] = (),
        apart: Collection[str] = (),
        called: tuple[str, str] = ("", ""),
    ) -> None:
        """Check that two files have the same tensors, and the same keys but for `differing` and `apart`.

        Only the shapes of `unread` tensors are compared; `alone` tensors are in the first file only. `called`
        is the part of tensor names that differs: in the first file, in the second.
        """
        with open_gguf(first) as ours, open_gguf(second) as other:
            both = {name: shape for name, shape in shapes(ours).items() if name not in alone}
            assert {name.replace(*called): shape for name, shape in both.items()} == shapes(other)
            for tensor in both.keys() - set(unread):
                exact = tensor != HALVES
                types = ours.tensor(tensor).type, other.tensor(tensor.replace(*called)).type
                assert not exact or types[0] is types[1], tensor
                found, expected = ours.array(tensor), other.array(tensor.replace(*called))
                tolerance = {"rtol": 1e-6} if exact else {"rtol": 1e-3, "atol": 1e-6}
                np.testing.assert_allclose(found, expected.reshape(found.shape), **tolerance, err_msg=tensor)
            said, expected = (
                {key: value for key, value in self._meaning(file).items() if key not in apart}
                for file in (ours, other)
            )
            assert said == expected
            assert ours.architecture == other.architecture

    def _meaning(self, file: Any) -> dict[str, Any]:
        """Return the keys of `file` that both converters should write, without the architecture's prefix."""
        architecture = file.architecture + "."
        found = {key.removeprefix(architecture): value for key, value in file.metadata.items()}
        return {
            key: plain(value)
            for key, value in found.items()
            if (key, value) != ("nextn_predict_layers", 0)
            and key not in THEIRS
            and key not in OURS
            and key not in self.differing.get(file.architecture, ())
            and not key.startswith(SOUND)
        }


def plain(value: Any) -> Any:
    """Return `value` as plain lists, with floats as text of six digits, so that values compare exactly."""
    if isinstance(value, float):
        return f"{value:.6g}, a fraction"
    value = value.tolist() if hasattr(value, "tolist") else value
    return [plain(each) for each in value] if isinstance(value, list) else value


def shapes(file: Any) -> dict[str, tuple[int, ...]]:
    """Return each tensor's shape without leading dimensions of 1, which readers ignore."""
    return {
        name: (tensor.count,)
        if name.endswith(FLAT)
        else tuple(dropwhile(lambda size: size == 1, tensor.shape))
        for name, tensor in file.tensors.items()
        if name != OURS_ALONE and not name.startswith(SOUND)
    }


def with_parts(config: dict[str, Any], **names: str) -> dict[str, Any]:
    """Return the configs of parts with the architectures in `names`, as published configs have them."""
    return {
        f"{part}_config": {**config[f"{part}_config"], "architectures": [name]}
        for part, name in names.items()
    }


def check_ears(ours: Path, theirs: Path, apart: Collection[str]) -> None:
    """Check that two files have the same audio tower, except for the keys `apart`."""
    with open_gguf(ours) as mine, open_gguf(theirs) as other:
        heard = {name for name in mine.tensors if name.startswith(("a.", "mm.a."))}
        assert heard == {name for name in other.tensors if name.startswith(("a.", "mm.a."))}
        for name in heard:  # theirs stores some in half precision
            found, expected = mine.array(name), other.array(name)
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4, err_msg=name)
        keys = {key for key in other.metadata if key.startswith("clip.audio.")}
        keys -= {f"clip.audio.{key}" for key in apart}
        assert {key: mine.metadata.get(key) for key in keys} == {key: other.metadata[key] for key in keys}


#: Runs their converter on every line of input: [folder, file, options, whether to keep its own vocabulary].
#: It recognises a pre-tokenizer by how it splits a text, from a table of known vocabularies. Its newest table
#: lacks the norms between the convolutions of Gemma 3n's audio tower, so that it fails.
SCRIPT = """
import json, sys, traceback
source = sys.argv[1]
sys.path[:0] = [source, source + "/gguf-py"]
import conversion
import conversion.base as base
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
import gguf.tensor_mapping as mapping
NORMS = mapping.MODEL_TENSOR.A_ENC_CONV1D_NORM
mapping.TensorNameMap.block_mappings_cfg[NORMS] += (
    "model.audio_tower.subsample_conv_projection.conv_{bid}.norm",
)
import transformers
transformers.AutoTokenizer = transformers.PreTrainedTokenizerFast  # others add tokens to what is published
import convert_hf_to_gguf as main
found = conversion.get_model_class
from gguf.tensor_mapping import TensorNameMap
names = dict(TensorNameMap.block_mappings_cfg)

for line in sys.stdin:
    folder, out, options, own = json.loads(line)
    TensorNameMap.block_mappings_cfg = dict(names)  # Arctic's replace those of all

    def kind_of(name, mmproj=False):
        kind = found(name, mmproj)
        if kind.supports_mtp_export:
            kind.no_mtp = False
        return kind if own or mmproj else type(kind.__name__, (kind,), {
            "model_arch": kind.model_arch, "set_vocab": base.TextModel._set_vocab_gpt2,
            "lerp_weights": {},  # shared by all models of a class
        })

    main.get_model_class = kind_of
    sys.argv = ["convert", folder, "--outfile", out, "--outtype", "f32", *options]
    try:
        main.main()
        said = ""
    except BaseException:
        said = traceback.format_exc()
    print(json.dumps(said), flush=True)
"""


@cache
def converter() -> subprocess.Popen[str]:
    """Start their converter, which runs until the tests end."""
    command = [sys.executable, "-c", SCRIPT, str(SOURCE.resolve())]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload, no-any-return]


def theirs(folder: Path, out: Path, *options: str, own_vocabulary: bool = False) -> Path:
    """Convert a folder with their converter and return `out`.

    Its vocabulary is taken for one of bytes, unless `own_vocabulary`.
    """
    running = converter()
    assert running.stdin is not None
    assert running.stdout is not None
    running.stdin.write(json.dumps([str(folder), str(out), options, own_vocabulary]) + "\n")
    running.stdin.flush()
    said = json.loads(running.stdout.readline())
    assert out.is_file(), f"llama.cpp's converter fails: {said[-2000:]}"
    return out
