"""Models that hear against Hugging Face transformers, on tiny random weights in float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from puna.audio.recording import Recording
from puna.audio.towers import lfm2_audio
from puna.batch import Input
from puna.model.load import load_model
from puna.vision.tower import marker, text
from tests.audio.hearing import Pair, is_heard, sound
from tests.engine.runs import Run, Watched
from tests.model.models.parity import check_close, original
from tests.tiny.audio.gemma3n import TinyGemma3nAudio
from tests.tiny.audio.gemma4 import TinyGemma4Audio
from tests.tiny.audio.gemma4_unified import TinyGemma4UnifiedAudio
from tests.tiny.audio.granite_speech import TinyGraniteSpeech
from tests.tiny.audio.lfm2_audio import TinyLfm2Audio
from tests.tiny.audio.models import HEARING_MODELS
from tests.tiny.audio.omni import TinyQwen3Omni, TinyQwen25Omni
from tests.tiny.audio.qwen2_audio import TinyQwen2Audio
from tests.tiny.audio.qwen3_asr import TinyQwen3Asr
from tests.tiny.audio.ultravox import TinyUltravox
from tests.tiny.audio.voxtral import TinyVoxtral
from tests.tiny.converted import contents_of
from tests.tiny.lfm2 import TinyLfm2
from tests.tiny.llama import TinyLlama


def pair_of(config: Any, folder: Path) -> Pair:
    theirs = original(config)
    layout = config.write(folder, theirs)
    return Pair(load_model(layout.model, projector=layout.projector), theirs, config)


@pytest.fixture(scope="module", params=HEARING_MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return pair_of(HEARING_MODELS[request.param](), tmp_path_factory.mktemp(request.param))


def check_answer(pair: Pair, run: Run, number: int, inputs: list[Input], *recordings: Recording) -> None:
    """Check that prompt tokens are as likely as transformers', and generated ones its likeliest."""
    run.submit_inputs(number, inputs, prompt_logprobs=True, logprobs=True, num_predict=4)
    run.finish()
    tokens = run.tokens(number)
    expected = pair.reference([*inputs, *map(Input, tokens)], *recordings)
    scored = run.scored(number)[1:]
    found = torch.tensor([logprob for _, logprob in scored])
    check_close(
        pair.ours, found, expected[torch.arange(len(scored)), torch.tensor([token for token, _ in scored])]
    )
    assert tokens == expected[len(inputs) - 1 : -1].argmax(dim=-1).tolist()


#: Seconds of recordings: two windows of the tiny Voxtral, exact seconds, a part of a frame, less than a row.
LENGTHS = {
    "usual": 1.3, "two windows": 2.7, "whole seconds": 2.0, "part of a frame": 1.3031, "short": 0.3,
    "shortest": 0.05,
}  # fmt: skip


@pytest.mark.parametrize("name", LENGTHS, ids=lambda name: name.replace(" ", "-"))
def test_rows_agree(pair: Pair, name: str) -> None:
    heard = sound(1, LENGTHS[name])
    inputs = pair.inputs(pair.run(), "a [img-0] b", heard)
    found = pair.encoded(inputs, slice_rows=7)
    expected = pair.embedded(heard)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() < 2e-4 * expected.abs().max()


@pytest.mark.slow
def test_rows_of_a_recording_longer_than_all_windows_agree(pair: Pair) -> None:
    heard = sound(2, 17.4)  # three windows of Qwen3-ASR
    found = pair.encoded(pair.inputs(pair.run(context=512), "[img-0]", heard), slice_rows=50)
    expected = pair.embedded(heard)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() < 2e-4 * expected.abs().max()


def test_log_probabilities_agree_at_every_position(pair: Pair) -> None:
    run, first, second = pair.run(), sound(1), sound(2, 2.6)
    inputs = pair.inputs(run, "a[img-0] the story [img-1]b", first, second)
    check_answer(pair, run, 0, inputs, first, second)


@pytest.mark.slow
def test_a_second_turn_reuses_the_first_and_hears_its_own_recording(pair: Pair) -> None:
    run, first, second = pair.run(), sound(1), sound(3)
    inputs = pair.inputs(run, "once upon a time there was one [img-0] is", first)
    check_answer(pair, run, 0, inputs, first)
    encoded = run.engine.images.encoded
    both = pair.inputs(run, "once upon a time there was one [img-0] is this, and [img-1]?", first, second)
    run.submit_inputs(1, both, logprobs=True, num_predict=4)
    run.finish()
    assert run.done(1).cached >= len(inputs) - 1
    assert run.engine.images.encoded == encoded + 1
    expected = pair.reference([*both, *map(Input, run.tokens(1))], first, second)
    assert run.tokens(1) == expected[len(both) - 1 : -1].argmax(dim=-1).tolist()


@pytest.mark.slow
def test_a_recording_agrees_beside_other_requests_and_in_small_batches(pair: Pair) -> None:
    run, heard = pair.run(Watched, batch_size=8), sound(4, 2.2)
    run.submit(0, "hello world", num_predict=24, logprobs=True)
    run.engine.step()
    check_answer(pair, run, 1, pair.inputs(run, "listen to [img-0]!", heard), heard)
    alone = pair.run()
    alone.submit(0, "hello world", num_predict=24)
    alone.finish()
    assert run.tokens(0) == alone.tokens(0)


#: Settings that no published model of these kinds has.
VARIANTS: dict[str, Callable[[], Any]] = {
    "granite-speech, wide heads, an even kernel, untied": lambda: TinyGraniteSpeech(
        TinyLlama(heads=2, kv_heads=1),
        heads=3,
        layers=3,
        head_dim=20,
        bands=13,
        context=17,
        reach=17,
        kernel=6,
        window=8,
        rate=2,
        query_size=36,
        query_heads=3,
        query_layers=1,
        tied=False,
    ),
    "granite-speech, one layer": lambda: TinyGraniteSpeech(TinyLlama(), layers=1, kernel=1, window=5, rate=5),
    "gemma3n, three heads, more taps, odd sizes, another chunk": lambda: TinyGemma3nAudio(
        TinyLlama(), heads=3, layers=3, bands=21, channels=7, taps=7, chunk=5, seed=3
    ),
    "gemma4, large, three heads, more taps, no bounds": lambda: TinyGemma4Audio(
        TinyLlama(), large=True, heads=3, layers=3, bands=24, channels=5, output=36, taps=7, bounded=False
    ),
    "gemma4 12b, shorter rows": lambda: TinyGemma4UnifiedAudio(TinyLlama(), samples=150, seed=3),
    "lfm2-audio, three heads, more taps and bands": lambda: TinyLfm2Audio(
        TinyLfm2(), heads=3, layers=3, expansion=3, channels=7, kernel=9, bands=128, inner=50, seed=3
    ),
    "lfm2-audio, one head, one tap, few bands": lambda: TinyLfm2Audio(
        TinyLfm2(), heads=1, layers=1, channels=1, kernel=1, bands=8
    ),
    "voxtral, three heads, six states a row": lambda: TinyVoxtral(
        TinyLlama(heads=2, kv_heads=1), heads=3, layers=3, positions=120, joined=6, bands=128
    ),
    "ultravox, three heads, three states a row, Qwen 3": lambda: TinyUltravox(
        TinyLlama(heads=2, kv_heads=1), heads=3, layers=3, positions=70, joined=3, inner=50, kind="qwen3"
    ),
    "ultravox, Gemma 3": lambda: TinyUltravox(TinyLlama(), bands=128, kind="gemma3_text"),
    "qwen2-audio, three heads, more bands": lambda: TinyQwen2Audio(
        TinyLlama(heads=2, kv_heads=1), heads=3, layers=3, positions=70, bands=128
    ),
    "qwen2.5-omni, three heads, more bands": lambda: TinyQwen25Omni(
        TinyLlama(heads=2, kv_heads=1, rope_base=3e5), heads=3, hearing_layers=3, bands=128
    ),
    "qwen3-omni, one head, odd bands": lambda: TinyQwen3Omni(
        TinyLlama(rope_base=3e5), heads=1, hearing_layers=3, channels=5, bands=37, speaking=(1,)
    ),
    "qwen3-asr, three heads, untied": lambda: TinyQwen3Asr(
        TinyLlama(heads=2, kv_heads=1), heads=3, layers=3, channels=5, bands=36, tied=False
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS, ids=lambda name: name.replace(" ", "-"))
def test_unusual_settings_agree(name: str, tmp_path: Path) -> None:
    pair, heard = pair_of(VARIANTS[name](), tmp_path), sound(5, 1.7)
    run = pair.run()
    check_answer(pair, run, 0, pair.inputs(run, "hello [img-0] world", heard), heard)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [TinyGemma3nAudio, TinyGemma4Audio])
def test_a_recording_that_a_processor_would_cut_is_read_in_parts(kind: Any, tmp_path: Path) -> None:
    pair, heard = pair_of(kind(TinyLlama(), layers=1), tmp_path), sound(7, 31.0)
    inputs = pair.inputs(pair.run(context=1024), "[img-0]", heard)
    assert len({id(item.payload.image) for item in inputs if is_heard(item)}) == 2
    found, expected = pair.encoded(inputs, slice_rows=400), pair.embedded(heard)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() < 2e-4 * expected.abs().max()


def test_windows_of_lfm2_audio_are_of_one_spectrogram(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lfm2_audio, "_MOST_STATES", 20)
    pair, heard = pair_of(TinyLfm2Audio(TinyLfm2()), tmp_path), sound(7, 3.6)
    inputs = pair.inputs(pair.run(), "[img-0]", heard)
    assert len({id(item.payload.image) for item in inputs if is_heard(item)}) == 3
    with torch.inference_mode():
        frames = pair.config.frames(heard)
        expected = torch.cat([pair.theirs.rows(each) for each in frames.split(8 * 20, dim=1)])
    found = pair.encoded(inputs, slice_rows=50)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() < 2e-4 * expected.abs().max()


@pytest.mark.slow
def test_a_text_model_with_the_name_that_llama_cpp_gives_it_agrees(tmp_path: Path) -> None:
    config, heard = TinyQwen3Asr(TinyLlama(rope_base=1e6)), sound(6)
    theirs = original(config)
    layout = config.write(tmp_path, theirs)
    text = contents_of(layout.model)
    text.architecture = "qwen3vl"
    text.set({"n_deepstack_layers": 0, "rope.dimension_sections": [4, 4, 4, 0]})
    named = text.write(tmp_path / "qwen3vl.gguf")
    pair = Pair(load_model(named, projector=layout.projector), theirs, config)
    run = pair.run()
    check_answer(pair, run, 0, pair.inputs(run, "hello [img-0] world", heard), heard)


def test_the_tokens_around_a_recording_are_the_processors(pair: Pair) -> None:
    inputs = pair.inputs(pair.run(), "a [img-0] b", sound(1))
    begin = next(place for place, item in enumerate(inputs) if is_heard(item))
    end = max(place for place, item in enumerate(inputs) if is_heard(item))
    before, after = (pieces_of(pair, each) for each in pair.config.around)
    assert [item.token for item in inputs[begin - len(before) : begin]] == before
    assert [item.token for item in inputs[end + 1 : end + 1 + len(after)]] == after
    first = begin - len(before)
    assert inputs[first].together == end - first + len(after)  # they are kept whole


def pieces_of(pair: Pair, spelling: str) -> list[int]:
    """Return the tokens of an empty line, if `spelling` begins with one, and of the rest, which is one."""
    lines = "\n\n" * spelling.startswith("\n\n")
    found = [item.token for item in text(pair.ours.tokenizer, lines)] if lines else []
    only = spelling.removeprefix(lines)
    return [*found, *([marker(pair.ours.tokenizer, only)] if only else [])]


def test_granite_speech_reads_long_recordings_in_whole_blocks(tmp_path: Path) -> None:
    config = TinyGraniteSpeech(TinyLlama(), layers=1)
    layout = config.write(tmp_path, original(config))
    tower = load_model(layout.model, projector=layout.projector).audio
    assert tower is not None
    windows = tower.prepare(sound(1, 130.0))
    lengths = [window.begin for window in windows[1:]]
    assert lengths == [2 * 6000 // 120 * 120]  # the least common multiple of a block and a window is 120
    assert sum(window.rows for window in windows) == -(-6500 // 15) * 3
