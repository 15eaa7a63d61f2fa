"""Files of whisper.cpp: converted to the model that safetensors give, and refused if they are damaged."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import puna
from puna.audio.languages import LANGUAGES
from puna.audio.recording import SAMPLE_RATE
from puna.convert import whisper_cpp
from puna.convert.whisper_cpp import MAGIC, convert_whisper_cpp, is_whisper_cpp
from puna.errors import ConversionError
from puna.gguf import GGMLType, open_gguf
from tests.model.models.parity import original
from tests.tiny.llama import merges
from tests.tiny.whisper import TinyWhisper, tiny_whisper_gguf
from tests.tiny.whisper_cpp import base_tokens, header, tensor_part, tensors_of, token_part, whisper_cpp_file

#: Models with so small a vocabulary know English alone, by whisper.cpp's rule.
CONFIG = TinyWhisper(
    layers=1, decoder_layers=2, sharp=30.0, ends=2.4, seed=4, multilingual=False, feed_forward=256,
    decoder_feed_forward=256,
)  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Any:
    return original(CONFIG)


def converted(folder: Path, data: bytes) -> Path:
    (folder / "ggml-tiny.bin").write_bytes(data)
    convert_whisper_cpp(folder / "ggml-tiny.bin", folder / "m.gguf")
    return folder / "m.gguf"


def test_the_model_is_that_of_safetensors(tmp_path: Path, model: Any) -> None:
    data = whisper_cpp_file(CONFIG, model)
    with (
        open_gguf(converted(tmp_path, data)) as ours,
        open_gguf(tiny_whisper_gguf(tmp_path / "t.gguf", CONFIG, model=model)) as theirs,
    ):
        assert set(ours.tensors) == set(theirs.tensors) - {"output.weight"}
        for name in ours.tensors:
            assert np.array_equal(ours.array(name), theirs.array(name)), name
        keys = [key for key in theirs.metadata if key.startswith("whisper.")]
        assert {key: ours.metadata[key] for key in keys} == {key: theirs.metadata[key] for key in keys}
        tokens = [[*file.metadata["tokenizer.ggml.tokens"]] for file in (ours, theirs)]
        # The tiny model has other languages than the first ones of the table.
        differing = [(mine, other) for mine, other in zip(*tokens, strict=True) if mine != other]
        assert differing == [("<|zh|>", "<|de|>"), ("<|de|>", "<|fr|>")]


@pytest.mark.slow
def test_transcripts_are_those_of_safetensors(tmp_path: Path, model: Any) -> None:
    heard = np.random.default_rng(1).normal(0, 0.1, 5 * SAMPLE_RATE)
    paths = converted(tmp_path, whisper_cpp_file(CONFIG, model)), tmp_path / "t.gguf"
    tiny_whisper_gguf(paths[1], CONFIG, model=model)
    texts = []
    for path in paths:
        with puna.load(path) as loaded:
            texts.append(loaded.transcribe(heard, prompt="hello world"))
    assert texts[0].text == texts[1].text
    assert [each.tokens for each in texts[0].segments] == [each.tokens for each in texts[1].segments]


@pytest.mark.parametrize("kind", [GGMLType.F16, GGMLType.Q5_0, GGMLType.Q8_0, GGMLType.Q4_0])
def test_weights_stay_as_they_are(tmp_path: Path, model: Any, kind: GGMLType) -> None:
    with open_gguf(converted(tmp_path, whisper_cpp_file(CONFIG, model, kind))) as file:
        assert file.tensors["blk.0.ffn_up.weight"].type is kind
        assert file.tensors["token_embd.weight"].type is kind
        assert file.tensors["a.conv1d.1.weight"].type is GGMLType.F16
        assert file.tensors["blk.0.ffn_up.bias"].type is GGMLType.F32
        assert file.metadata["general.file_type"] == {
            GGMLType.F16: 1,
            GGMLType.Q5_0: 8,
            GGMLType.Q8_0: 7,
        }.get(kind, 2)
        kept = file.array("blk.1.cross_attn_q.weight")
    exact = tensors_of(model)["decoder.blocks.1.cross_attn.query.weight"]
    assert np.abs(kept - exact).max() < 0.2
    with puna.load(tmp_path / "m.gguf") as loaded:
        assert loaded.transcribe(np.zeros(SAMPLE_RATE // 10)).language == "en"


def test_special_tokens_of_published_sizes_have_their_places() -> None:
    """Ids are those of `whisper/tokenizer.py`."""
    texts = [*base_tokens(), *(b"word%d" % id for id in range(len(base_tokens()), 50257))]
    known = {
        51864: (50256, {"endoftext": 50256, "startoftranscript": 50257, "en": 50258, "transcribe": 50358}),
        51865: (
            50257,
            {"endoftext": 50257, "en": 50259, "translate": 50358, "notimestamps": 50363, "0.00": 50364},
        ),
        51866: (50257, {"yue": 50358, "translate": 50359, "nospeech": 50363, "0.00": 50365, "30.00": 51865}),
    }
    for size, (count, ids) in known.items():
        for given in (texts[:count], [*texts[:count], b"<|endoftext|>"]):
            found = whisper_cpp._token_table(given, {"n_vocab": size, "n_audio_ctx": 1500}, "m")
            assert {name: found["tokens"].index(f"<|{name}|>") for name in ids} == ids
            assert found["eos_token_id"] == count
            assert len(found["tokens"]) == size


def test_languages_are_in_the_order_of_their_tokens() -> None:
    transformers = pytest.importorskip("transformers.models.whisper.tokenization_whisper")
    assert [*LANGUAGES] == [*transformers.LANGUAGES]


def test_merges_follow_from_the_order_of_tokens() -> None:
    """All of the tiny vocabulary, except that of a token which its other merges make impossible."""
    characters = whisper_cpp.byte_characters()
    found = [
        tuple("".join(characters[byte] for byte in part) for part in pair)
        for pair in whisper_cpp._merges(base_tokens())
    ]
    expected = [tuple(pair) for pair in merges()]
    impossible = ("Ġupo", "n")
    assert [pair for pair in found if pair in expected] == [pair for pair in expected if pair != impossible]


def test_another_file_is_not_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\x03\x04 and so on")
    assert not is_whisper_cpp(tmp_path / "pytorch_model.bin")
    (tmp_path / "ggml.bin").write_bytes(MAGIC)
    assert is_whisper_cpp(tmp_path / "ggml.bin")


VALID = header(CONFIG) + token_part(base_tokens())
NUMBER = struct.Struct("<i").pack


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GGUF", "is not a model of whisper.cpp"),
        (MAGIC + b"\1\0", "ends within its sizes"),
        (header(CONFIG, changes={0: 1 << 30}), "n_vocab is 1073741824, and must be 1 to 262144"),
        (header(CONFIG, changes={4: 0}), "n_audio_layer is 0"),
        (header(CONFIG, changes={9: -1}), "n_mels is -1"),
        (header(CONFIG, changes={10: 5}), "has weights of type 5, which is unknown"),
        (header(CONFIG, changes={10: 1008}), "quantised weights of layout 1, and only 2 is read"),
        (header(CONFIG)[:60], "ends within its mel filters"),
        (header(CONFIG)[:48] + NUMBER(1024) + NUMBER(1 << 20), "n_fft is 1048576"),
        (header(CONFIG) + NUMBER(CONFIG.vocab_size + 1), "number of tokens with text is"),
        (header(CONFIG) + NUMBER(2) + NUMBER(1 << 20), "length of token 0 is 1048576, and must be 0 to 256"),
        (header(CONFIG) + NUMBER(2) + NUMBER(3) + b"ab", "ends within token 0"),
        (header(CONFIG) + token_part([b"a"]), "leaves room for .* languages: 0 to 100"),
        (VALID, "has no feed-forward network in the first layer"),
        (VALID + b"\1\0", "ends within tensor 0"),
        (VALID + struct.pack("<3i", 9, 1, 0), "dimensions of tensor 0 is 9"),
        (VALID + struct.pack("<3i", 1, 1 << 20, 0), "length of the name of tensor 0 is 1048576"),
        (VALID + tensor_part("encoder.blocks.0.attn.bias", np.zeros(3)), "attn.bias', which is unknown"),
        (VALID + tensor_part("nothing", np.zeros(3)), "has tensor 'nothing', which is unknown"),
        (VALID + 2 * tensor_part("decoder.ln.bias", np.zeros(3)), "has tensor 'decoder.ln.bias' twice"),
        (VALID + tensor_part("decoder.ln.bias", np.zeros(3))[:-1], "ends within tensor 'decoder.ln.bias'"),
        (VALID + struct.pack("<4i", 1, 15, 24, 3) + b"decoder.ln.bias", "of type 24, which is not supported"),
        (VALID + struct.pack("<4i", 1, 15, 0, 0) + b"decoder.ln.bias", "tensor 'decoder.ln.bias' is 0"),
        (
            VALID + struct.pack("<5i", 2, 30, 2, 33, 1) + b"decoder.token_embedding.weight",
            "with rows of 33, no whole blocks",
        ),
    ],
)  # fmt: skip
def test_damage_is_named(tmp_path: Path, data: bytes, words: str) -> None:
    with pytest.raises(ConversionError, match=f"ggml-tiny.bin .*{words}"):
        converted(tmp_path, data)


def test_a_long_vocabulary_is_refused_before_it_takes_long(tmp_path: Path) -> None:
    texts = [bytes(256)] * 40_000
    data = header(CONFIG, changes={0: 50_000}) + token_part(texts)
    with pytest.raises(ConversionError, match="tokens of more than 4194304 bytes"):
        converted(tmp_path, data[: len(data) // 2])
