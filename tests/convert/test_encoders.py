"""Encoders, converted, compute what transformers computes with them."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from puna.batch import Batch
from puna.convert import convert
from puna.gguf import FileType
from puna.model.load import load_model
from tests import forward
from tests.convert.checkpoints import saved
from tests.model.models.parity import FLOATS, check_close, original, random_tokens
from tests.tiny_bert import SPECIALS, VOCABULARY, TinyBert


def test_bert(tmp_path: Path) -> None:
    theirs = original(TinyBert())
    folder = saved(tmp_path / "checkpoint", theirs, tokenizer=False)
    words = [
        word[1:] if word.startswith("▁") else word if word in SPECIALS else "##" + word for word in VOCABULARY
    ]
    tokenizer = {
        "added_tokens": [
            {"id": words.index(text), "content": text, "special": True, "normalized": False}
            for text in SPECIALS
        ],
        "normalizer": {"type": "BertNormalizer", "lowercase": True, "strip_accents": None},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "vocab": {word: id for id, word in enumerate(words)},
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text('{"cls_token": "[CLS]", "sep_token": "[SEP]"}')
    modules = [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    convert(folder, tmp_path / "m.gguf", FileType.F32)
    ours = load_model(tmp_path / "m.gguf")
    assert ours.pooling == "mean"
    cache = ours.make_cache(sequences=1, context=64, types=FLOATS)
    tokens = random_tokens(ours, 40, 3)
    batch = Batch.of(tokens, list(range(40)), [0] * 40, list(range(40)))
    with torch.inference_mode():
        cache.start_forward(batch)
        expected = theirs(torch.tensor([tokens])).last_hidden_state[0]
        check_close(ours, forward.states_of(ours.model, batch, cache), expected)
