"""`puna transcribe` against a real server, with a tiny random Whisper."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.audio.sounds import file_of, tone, wav
from tests.cli.shell import Shell
from tests.tiny.whisper import TinyWhisper, tiny_whisper_gguf
from tests.tiny.whisper_cpp import whisper_cpp_file

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def sounds(shell: Shell, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two sounds; the server has the model `hearing` then."""
    folder = tmp_path_factory.mktemp("sounds")
    made = shell.run("create", "hearing", "-f", "-", stdin=f"FROM {tiny_whisper_gguf(folder / 'w.gguf')}")
    assert made.returncode == 0, made.stderr
    (folder / "one.wav").write_bytes(wav(tone(3.0)))
    (folder / "two.flac").write_bytes(file_of(tone(2.0, 44_100), 44_100))
    return folder


def test_segments_are_printed_as_lines_by_the_newest_model_that_transcribes(
    shell: Shell, sounds: Path
) -> None:
    done = shell.run("transcribe", "one.wav", cwd=sounds)
    assert done.returncode == 0, done.stderr
    whole = json.loads(shell.out("transcribe", "--json", "--model", "hearing", "one.wav", cwd=sounds))
    assert len(done.stdout.splitlines()) >= len(whole["segments"]) >= 1
    assert (whole["duration"], whole["task"]) == (3.0, "transcribe")
    assert "one.wav: 3.0 s of " in done.stderr
    assert "times real time" in done.stderr


def test_times_of_words_are_part_of_json(shell: Shell, sounds: Path) -> None:
    whole = json.loads(shell.out("transcribe", "--json", "--words", "one.wav", cwd=sounds))
    for segment in whole["segments"]:
        assert "".join(word["word"] for word in segment["words"]) == "".join(segment["text"].split())
    assert all(set(word) == {"word", "start", "end"} for word in whole["segments"][0]["words"])


def test_files_are_written_beside_each_other(shell: Shell, sounds: Path, tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    words = ("transcribe", "--srt", "--language", "de", "--output", str(folder), "one.wav", "two.flac")
    done = shell.run(*words, cwd=sounds)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert {path.name for path in folder.iterdir()} == {"one.srt", "two.srt"}
    assert (folder / "one.srt").read_text().startswith("1\n00:00:0")
    assert "two.flac: 2.0 s of german" in done.stderr
    again = shell.run(*words, cwd=sounds)
    assert again.returncode == 1
    assert "one.srt exists; overwrite it with --force" in again.stderr
    assert shell.run(*words, "--force", cwd=sounds).returncode == 0


def test_a_file_of_whisper_cpp_is_created_and_used(shell: Shell, sounds: Path, tmp_path: Path) -> None:
    config = TinyWhisper(layers=1, decoder_layers=1, multilingual=False)
    (tmp_path / "ggml-tiny.bin").write_bytes(whisper_cpp_file(config, config.build()))
    made = shell.run("create", "ggml", "-f", "-", stdin=f"FROM {tmp_path / 'ggml-tiny.bin'}")
    assert made.returncode == 0, made.stderr
    done = shell.run("transcribe", "--model", "ggml", "one.wav", cwd=sounds)
    assert done.returncode == 0, done.stderr
    assert "one.wav: 3.0 s of english" in done.stderr
    by_path = ("transcribe", "--model", str(tmp_path / "ggml-tiny.bin"), "one.wav")
    again = [shell.run(*by_path, cwd=sounds) for _ in range(2)]
    assert [each.stdout for each in again] == [done.stdout] * 2, again[0].stderr
    assert ["Added ggml-tiny.gguf as model 'ggml-tiny'" in each.stderr for each in again] == [True, False]
    (tmp_path / "ggml-cut.bin").write_bytes((tmp_path / "ggml-tiny.bin").read_bytes()[:-5])
    refused = shell.run("create", "cut", "-f", "-", stdin=f"FROM {tmp_path / 'ggml-cut.bin'}")
    assert refused.returncode == 1
    assert "ggml-cut.bin ends within tensor" in " ".join(refused.stderr.split())
    unread = shell.run("transcribe", "--model", str(tmp_path / "ggml-cut.bin"), "one.wav", cwd=sounds)
    assert unread.returncode == 1
    assert "ggml-cut.bin ends within tensor" in " ".join(unread.stderr.split())


def test_a_model_that_transcribes_is_not_run(shell: Shell, sounds: Path) -> None:
    done = shell.run("run", "hearing", "hello")
    assert done.returncode == 1
    assert "Usage: puna transcribe --model hearing FILE" in done.stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("nothing.wav",), "nothing.wav does not exist"),
        (("one.wav", "two.flac", "--vtt"), "subtitles of several files need a folder: --output DIR"),
        (("one.wav", "one.wav", "--output", "there"), "would both be written to there/one.txt"),
        (("one.wav", "--words"), "--words needs --json"),
        (("one.wav", "--srt", "--json"), "only one of --srt, --vtt and --json"),
        (("w.gguf",), "the file 'w.gguf' is not in a supported format"),
        (("one.wav", "--model", "tiny"), '"tiny:latest" does not support transcription'),
    ],
)
def test_files_that_cannot_be_transcribed_are_refused(
    shell: Shell, sounds: Path, words: tuple[str, ...], complaint: str
) -> None:
    done = shell.run("transcribe", *words, cwd=sounds)
    assert done.returncode == 1
    assert complaint in " ".join(done.stderr.split())
