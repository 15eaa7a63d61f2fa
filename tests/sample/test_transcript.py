"""Rules of transcripts against transformers' processor of logits."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GenerationConfig
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

from puna.errors import GenerationError, ModelError
from puna.gguf import open_gguf
from puna.ops import Backend
from puna.options import Options
from puna.sample import Sampler
from puna.sample.transcript import OneOf, TranscriptRules, TranscriptTokens
from puna.tokenizer import Tokenizer, tokenizer_from_gguf
from tests.tiny.llama import tiny_llama_gguf
from tests.tiny.whisper import LANGUAGES, TinyWhisper, tiny_whisper_gguf

CONFIG = TinyWhisper(layers=1, decoder_layers=1)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tiny_whisper_gguf(tmp_path_factory.mktemp("whisper") / "m.gguf", CONFIG)
    with open_gguf(path) as file:
        return tokenizer_from_gguf(file)


@pytest.fixture(scope="module")
def tokens(tokenizer: Tokenizer) -> TranscriptTokens:
    return TranscriptTokens.of(tokenizer)


def test_special_tokens_are_found_by_their_spelling(tokens: TranscriptTokens) -> None:
    assert tokens.end == CONFIG.id_of("endoftext")
    assert tokens.begin_time == CONFIG.id_of("0.00")
    assert tokens.no_speech == CONFIG.id_of("nospeech")
    assert tokens.languages == {code: CONFIG.id_of(code) for code in LANGUAGES}


def test_a_vocabulary_without_them_is_refused(tmp_path: Path) -> None:
    with (
        open_gguf(tiny_llama_gguf(tmp_path / "m.gguf")) as file,
        pytest.raises(ModelError, match=r"<\|start"),
    ):
        TranscriptTokens.of(tokenizer_from_gguf(file))


def test_what_nobody_says_is_never_written(tokens: TranscriptTokens, tokenizer: Tokenizer) -> None:
    unsaid = {tokenizer.piece(token).decode(errors="replace") for token in tokens.unsaid}
    assert {'"', "#", "(", "[", "<|startoftranscript|>", "<|transcribe|>", "<|nospeech|>"} <= unsaid
    assert not {"'", "-", ".", ",", "?", "!", "a", " "} & unsaid


@pytest.mark.parametrize("seed", range(12))
def test_answers_follow_the_same_rules_as_in_the_reference(tokens: TranscriptTokens, seed: int) -> None:
    theirs = WhisperTimeStampLogitsProcessor(
        GenerationConfig(
            eos_token_id=tokens.end, no_timestamps_token_id=tokens.no_timestamps,
            max_initial_timestamp_index=50,
        ),
        begin_index=3,
    )  # fmt: skip
    theirs.timestamp_begin = tokens.begin_time
    rng, chance = np.random.default_rng(seed), random.Random(seed)
    rules, answer, likelihood = TranscriptRules(tokens), [], 0.0
    for _ in range(24):
        logits = rng.normal(0, 1 + seed % 4, CONFIG.vocab_size).astype(np.float32)
        logits[tokens.begin_time :] -= seed % 3  # or nearly all tokens are timestamps
        expected = torch.from_numpy(logits.copy())[None]
        expected[0, list(tokens.unsaid)] = -torch.inf
        expected = theirs(torch.tensor([[0, 0, 0, *answer]]), expected)[0]
        rules.limit(logits)
        assert np.array_equal(logits, expected.numpy())
        token = chance.choice(np.flatnonzero(np.isfinite(logits)).tolist())
        rules.accept(token)
        likelihood += float(torch.log_softmax(expected.double(), 0)[token])
        answer.append(token)
        ended = token == tokens.end
        assert rules.average == pytest.approx(likelihood / (len(answer) + (not ended)))
        if ended:
            break


def test_one_of_some_tokens_has_the_probability_among_all() -> None:
    logits = np.array([0.0, 3.0, 1.0, 2.0], np.float32)
    rule = OneOf([2, 3])
    expected = np.exp(logits[2:]) / np.exp(logits).sum()
    rule.limit(logits)
    assert rule.probabilities == pytest.approx(expected)
    assert logits.tolist() == [-np.inf, -np.inf, 1.0, 2.0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_sampler_draws_only_what_the_rules_leave(
    tokens: TranscriptTokens, ops: Backend, temperature: float
) -> None:
    rules = TranscriptRules(tokens)
    options = Options(temperature=temperature, seed=3, top_k=0, top_p=1.0)
    sampler = Sampler(options, CONFIG.vocab_size, ops, rules=rules)
    logits = np.random.default_rng(0).normal(0, 2, CONFIG.vocab_size).astype(np.float32)
    given = ops.array(logits.copy())
    first = sampler.sample(given)
    assert tokens.begin_time <= first <= tokens.begin_time + 50
    sampler.accept(first, generated=True)
    assert sampler.sample(given) < tokens.begin_time
    assert rules.log_probability < 0
    assert np.array_equal(ops.numpy(given), logits)


def test_logits_that_are_not_numbers_fail_before_the_rules(tokens: TranscriptTokens, ops: Backend) -> None:
    sampler = Sampler(Options(temperature=0), CONFIG.vocab_size, ops, rules=TranscriptRules(tokens))
    with pytest.raises(GenerationError, match="NaN"):
        sampler.sample(ops.array(np.full(CONFIG.vocab_size, np.nan, np.float32)))
