"""Converted tokenizers of every kind encode texts as the published ones do."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from puna.convert.checkpoint import Checkpoint
from puna.convert.config import Config
from puna.convert.family import Family
from puna.convert.registry import family_of
from puna.convert.vocabulary import WORLD, vocabulary
from puna.errors import ConversionError
from puna.gguf import GGUFWriter, ValueType, open_gguf
from puna.tokenizer.load import tokenizer_from_gguf
from puna.tokenizer.vocabulary import TokenType
from tests.convert.checkpoints import save_tokenizer, saved
from tests.model.models.parity import original
from tests.tiny.llama import SPECIALS, TinyLlama

WORDS = "once upon a time there was a cat who told the story of the hello world to all that wanted to hear it"
CORPUS = [
    WORDS,
    WORDS.title(),
    "1234 56, 7! (abc) äöü é ñ",
    "  two  blanks\nand lines",
    "Ünïcödé 🦙 text",
] * 20
TEXTS = [WORDS, "The Story: once, 12345!", "  blanks   at both ends ", "ünïcödé and 🦙", "a\n\nb\tc", "x"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(tmp_path / "checkpoint", original(TinyLlama()), tokenizer=False)


def our_tokenizer(folder: Path, size: int, **family: Any) -> Any:
    """Return our tokenizer, converted from the folder's."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "vocab_size": size}))
    known = Family(hf=(), architecture=family.pop("architecture", "llama"), **family)
    writer = GGUFWriter(folder / "m.gguf", known.architecture)
    with Checkpoint(folder) as checkpoint:
        for key, value in vocabulary(checkpoint, Config(checkpoint.config), known).items():
            kind = {"scores": ValueType.FLOAT32, "token_type": ValueType.INT32}.get(key.rpartition(".")[2])
            writer.add(key, value, kind)
    writer.write()
    with open_gguf(folder / "m.gguf") as file:
        return tokenizer_from_gguf(file)


def test_vocabulary_shorter_than_the_embedding_is_padded(folder: Path) -> None:
    save_tokenizer(folder)
    path = folder / "config.json"
    known = json.loads(path.read_text())
    path.write_text(json.dumps(known | {"vocab_size": known["vocab_size"] + 2}))
    with Checkpoint(folder) as checkpoint:
        found = vocabulary(checkpoint, Config(checkpoint.config), Family(hf=(), architecture="llama"))
    size = known["vocab_size"]
    assert found["tokenizer.ggml.tokens"][-3:] == [SPECIALS[-1], f"[PAD{size}]", f"[PAD{size + 1}]"]
    assert found["tokenizer.ggml.token_type"][-2:] == [TokenType.UNUSED] * 2


def check(found: Any, theirs: Any) -> None:
    for text in TEXTS:
        assert found.encode(text, add_special=False) == theirs(text), text


def test_sentencepiece_bpe_encodes_as_published(folder: Path) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, vocab_size=400, model_type="bpe",
        byte_fallback=True, character_coverage=1.0, minloglevel=2, hard_vocab_limit=False,
        normalization_rule_name="identity", remove_extra_whitespaces=False,
    )  # fmt: skip
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {"add_bos_token": True, "added_tokens_decoder": {"402": {"content": "<|x|>", "special": True}}}
        )
    )
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    found = our_tokenizer(folder, 405)
    check(found, theirs.encode)
    assert 402 in found.encode("a<|x|>b", add_special=False)


def test_sentencepiece_bpe_from_tokenizer_json_encodes_as_published(folder: Path) -> None:
    theirs = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    theirs.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    theirs.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    theirs.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>", "<s>", "</s>", *bytes_])
    )
    made = json.loads(theirs.to_str())
    made["added_tokens"] = [entry for entry in made["added_tokens"] if not entry["content"].startswith("<0x")]
    (folder / "tokenizer.json").write_text(json.dumps(made))
    again = Tokenizer.from_file(str(folder / "tokenizer.json"))
    check(
        our_tokenizer(folder, again.get_vocab_size()),
        lambda text: again.encode(text, add_special_tokens=False).ids,
    )


def test_unigram_model_encodes_as_published(folder: Path) -> None:
    theirs = Tokenizer(models.Unigram())
    theirs.pre_tokenizer = pre_tokenizers.Metaspace()
    theirs.train_from_iterator(
        CORPUS,
        trainers.UnigramTrainer(vocab_size=200, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>"),
    )
    theirs.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"clean_up_tokenization_spaces": false}')
    texts = lambda text: theirs.encode(text, add_special_tokens=False).ids  # noqa: E731
    found = our_tokenizer(folder, theirs.get_vocab_size(), architecture="t5")
    for text in (WORDS, "the story 1234 (abc)"):
        assert found.encode(text, add_special=False) == texts(text)


def test_rwkv_world_vocabulary_encodes_as_published(folder: Path) -> None:
    tokens = [*(bytes([byte]) for byte in range(256)), b"\n\n", b" the", b"It's", "story", "\u2028", b"\"'"]
    lines = [f"{id} {token!r} {len(_bytes(token))}" for id, token in enumerate(tokens, 1)]
    (folder / WORLD).write_text("\n".join(lines) + "\n")
    found = our_tokenizer(folder, len(tokens) + 3, architecture="rwkv7")
    assert [found.piece(id) for id in range(1, len(tokens) + 1)] == [*map(_bytes, tokens)]
    assert found.encode("It's the\n\nstory") == [
        tokens.index(token) + 1 for token in (b"It's", b" the", b"\n\n", "story")
    ]
    assert (found.bos_id, found.eos_ids) == (0, {0, 257})


def _bytes(token: str | bytes) -> bytes:
    return token.encode() if isinstance(token, str) else token


@pytest.mark.parametrize(
    "line", ["1", "1 b'a' 2", "x b'a' 1", "1 a 1", "1 ['a'] 1", "1 " + "(" * 5000 + " 1"]
)
def test_malformed_line_of_the_rwkv_vocabulary_is_named(folder: Path, line: str) -> None:
    (folder / WORLD).write_text(f"{line}\n")
    with pytest.raises(ConversionError, match=rf"{WORLD}: line 1 is"):
        our_tokenizer(folder, 9, architecture="rwkv7")


def test_wordpiece_encodes_as_published(folder: Path) -> None:
    theirs = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    theirs.normalizer = normalizers.BertNormalizer(lowercase=True)
    theirs.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    theirs.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=special))
    theirs.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", [("[CLS]", 2), ("[SEP]", 3)]
    )
    theirs.save(str(folder / "tokenizer.json"))
    names = ("cls", "sep", "unk", "pad", "mask")
    texts = dict(zip(names, ("[CLS]", "[SEP]", "[UNK]", "[PAD]", "[MASK]"), strict=True))
    (folder / "tokenizer_config.json").write_text(json.dumps({f"{n}_token": t for n, t in texts.items()}))
    found = our_tokenizer(folder, theirs.get_vocab_size(), architecture="bert")
    for text in TEXTS[:4]:
        assert found.encode(text) == theirs.encode(text).ids, text


def test_bpe_with_a_whitespace_pre_tokenizer_is_refused(folder: Path) -> None:
    theirs = Tokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.Whitespace()
    theirs.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=100))
    theirs.save(str(folder / "tokenizer.json"))
    with pytest.raises(ConversionError, match="BPE of whitespace-separated words is not supported"):
        our_tokenizer(folder, theirs.get_vocab_size())


@pytest.mark.parametrize(
    ("model", "name"),
    [("DeepseekV2ForCausalLM", "deepseek-llm"), ("DeepseekV3ForCausalLM", "deepseek-v3")],
)
def test_deepseek_gets_the_pre_tokenizer_of_its_version(model: str, name: str, folder: Path) -> None:
    """Even if `tokenizer.json` does not define it."""
    save_tokenizer(folder)
    made = json.loads((folder / "tokenizer.json").read_text())
    made["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    (folder / "tokenizer.json").write_text(json.dumps(made))
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "architectures": [model]}))
    with Checkpoint(folder) as checkpoint:
        found = vocabulary(checkpoint, Config(checkpoint.config), family_of(checkpoint))
        assert found["tokenizer.ggml.pre"] == name


@pytest.mark.parametrize(
    ("cuts", "merged", "family", "name"),
    [
        (["gpt-2"], False, "gpt-2", "gpt-2"), (["llama-bpe"], True, "llama-bpe", "llama-bpe"),
        (["llama-bpe"], False, "", "dbrx"), (["qwen2"], False, "qwen2", "qwen2"),
        (["qwen2"], False, "hunyuan", "hunyuan"), (["deepseek-v3"], False, "deepseek-v3", "deepseek-v3"),
        (["tekken"], True, "tekken", "tekken"), (["gpt-4o"], False, "gpt-4o", "gpt-4o"),
    ],
)  # fmt: skip
def test_pre_tokenizers_are_recognised(
    cuts: list[str], merged: bool, family: str, name: str, folder: Path
) -> None:
    from puna.tokenizer.patterns import BY_NAME
    from tests.convert.checkpoints import save_tokenizer

    save_tokenizer(folder)
    made = json.loads((folder / "tokenizer.json").read_text())
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    steps = [
        {"type": "Split", "pattern": {"Regex": step}, "behavior": "Isolated", "invert": False}
        for cut in cuts
        for step in BY_NAME[cut].steps
    ]
    made["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*steps, level]}
    made["model"]["ignore_merges"] = merged
    (folder / "tokenizer.json").write_text(json.dumps(made))
    with Checkpoint(folder) as checkpoint:
        known = Family(hf=(), architecture="llama", pre=family)
        assert vocabulary(checkpoint, Config(checkpoint.config), known)["tokenizer.ggml.pre"] == name
