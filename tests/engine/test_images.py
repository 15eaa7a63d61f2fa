"""Images in the engine: when they are encoded, how long that takes, and what is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import puna
from puna.batch import ImagePart, Input
from puna.engine.images import Images
from puna.engine.requests import read_text
from puna.errors import ImageError, RequestError
from puna.model.load import LoadedModel, load_model
from puna.vision.limits import ImageLimits
from tests.engine.runs import Run, Watched
from tests.model.models.parity import original
from tests.tiny.vision.common import Layout
from tests.tiny.vision.models import VISION_MODELS
from tests.vision.seeing import file_of, picture, share_preparer


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    config = VISION_MODELS["gemma3"]()
    return config.write(tmp_path_factory.mktemp("seeing"), original(config))


@pytest.fixture(scope="module")
def seeing(layout: Layout) -> LoadedModel:
    return load_model(layout.model)


def watched(seeing: LoadedModel, **settings: Any) -> Watched:
    run = Watched(seeing, **{"context": 128, **settings})
    share_preparer(run)
    return run


def inputs(run: Run, text: str, *seeds: int) -> list[Input]:
    assert run.engine.images is not None
    images = run.engine.images.read([file_of(picture(seed)) for seed in seeds])
    return read_text(text, images, run.engine.loaded.tokenizer, run.engine.loaded.vision)


def shape(items: list[Input], tokenizer: Any) -> str:
    """Return the text of `items`, with * for each row of an image."""
    return "".join("*" if item.payload else tokenizer.decode([item.token]) for item in items)


# --- the input stream -----------------------------------------------------------------------------------


def test_an_image_takes_the_place_of_its_tag(seeing: LoadedModel) -> None:
    run = watched(seeing)
    placed = "\n\n<start_of_image>****<end_of_image>\n\n"
    assert shape(inputs(run, "a[img-0]b[img-1]c", 1, 2), seeing.tokenizer) == f"<|begin|>a{placed}b{placed}c"
    items = inputs(run, "[img-0]hi", 1)
    assert shape(items, seeing.tokenizer) == f"<|begin|>{placed}hi"
    group = items[1:]
    assert (group[0].same_batch, group[0].payload) == (4 + 2 + 3, None)  # "\n\n" is two tokens here
    rows = [item for item in group if isinstance(item.payload, ImagePart)]
    assert [(row.payload.begin, row.payload.end) for row in rows] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert [row.span for row in rows] == [4, 0, 0, 0]
    assert len({row.payload_hash for row in rows} - {0}) == 4


def test_tags_select_images_by_number(seeing: LoadedModel) -> None:
    run = watched(seeing)
    with pytest.raises(RequestError, match=r"invalid image index: .*\[img-5\].* 0 to 1"):
        inputs(run, "[img-5]", 1, 2)
    other = [item for item in inputs(run, "[img-1][img-0]", 1, 2) if item.payload]
    assert other[0].payload_hash == inputs(run, "[img-0]", 2)[4].payload_hash  # by number, not by position
    items = [item for item in inputs(run, "[img-1][img-1]", 1, 2) if item.payload]
    assert [item.payload_hash for item in items[:4]] == [item.payload_hash for item in items[4:]]
    assert shape(inputs(run, "no tag", 1), seeing.tokenizer) == "<|begin|>no tag"
    assert (
        shape(inputs(run, "[img-0]"), seeing.tokenizer) == "<|begin|>[img-0]"
    )  # without images the tag is text


def test_an_image_tagged_twice_is_encoded_once_and_an_untagged_one_never(seeing: LoadedModel) -> None:
    run = watched(seeing)
    run.submit_inputs(0, inputs(run, "[img-1] and [img-1]", 1, 2), num_predict=4)
    with pytest.raises(RequestError, match="invalid image index"):
        inputs(run, "[img-2]", 1, 2)
    run.finish()
    assert (len(run.tokens(0)), run.engine.images.encoded) == (4, 1)


def test_hashes_depend_on_content_alone(seeing: LoadedModel) -> None:
    one, other = watched(seeing), watched(seeing)
    first = inputs(one, "[img-0][img-1]", 1, 2)
    second = inputs(other, "[img-1][img-0]", 2, 1)
    assert [item.payload_hash for item in first] == [item.payload_hash for item in second]


# --- encoding --------------------------------------------------------------------------------------------


@pytest.fixture
def slices(seeing: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count encoded slices: the list grows with each."""
    done: list[int] = []
    encode = type(seeing.vision).encode

    def counted(self: Any, prepared: Any, slice_rows: int) -> Iterator[None]:
        inner = encode(self, prepared, slice_rows)
        while True:
            try:
                next(inner)
            except StopIteration as end:
                return end.value
            done.append(slice_rows)
            yield

    monkeypatch.setattr(type(seeing.vision), "encode", counted)
    return done


def test_streams_continue_while_an_image_is_encoded(
    seeing: LoadedModel, slices: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = watched(seeing, batch_size=4)  # 16 patches in slices of 4
    run.submit(0, "hello", num_predict=60)
    run.engine.step()
    (stream,) = run.engine.scheduler.running
    monkeypatch.setattr(run.engine.scheduler.pace, "patience_s", lambda load: 0.0)
    run.submit_inputs(1, inputs(run, "look [img-0]", 1), num_predict=2)
    between: list[int] = []
    while not run.ended:
        said, before = stream.generated, len(slices)
        run.engine.step()
        if len(slices) > before:
            between.append(len(slices) - before)
            assert stream.generated == said + 1  # the stream got its token in the same step
    # One slice before the layers, then in each of two layers four of keys and four of the rest.
    assert between == [1] * (1 + 2 * 8)
    run.finish()
    assert sorted(run.ended) == [0, 1]


def test_an_image_in_the_prefix_cache_is_not_encoded(seeing: LoadedModel) -> None:
    run = watched(seeing)
    for number in range(2):
        images = run.engine.images
        run.submit_inputs(number, inputs(run, "what is [img-0] this", 1), num_predict=3)
        run.finish()
        images._known.clear()  # so that only its cells could identify it
    assert run.done(1).cached > 10
    assert images.encoded == 1
    assert run.tokens(0) == run.tokens(1)


def test_an_image_at_another_position_is_not_encoded_again(seeing: LoadedModel) -> None:
    run = watched(seeing)
    for number, text in enumerate(("see [img-0]", "another text with [img-0] in it")):
        run.submit_inputs(number, inputs(run, text, 1), num_predict=3)
    run.finish()
    assert run.engine.images.encoded == 1
    alone = watched(seeing)
    alone.submit_inputs(1, inputs(alone, "another text with [img-0] in it", 1), num_predict=3)
    alone.finish()
    assert run.tokens(1) == alone.tokens(1)


def test_a_short_prefix_before_an_image_is_reused_although_windows_forget_it(seeing: LoadedModel) -> None:
    run = watched(seeing, batch_size=32)
    for number in range(3):  # the second leaves a checkpoint where it differs from the first
        run.submit_inputs(number, inputs(run, "what is [img-0]" + " and so on" * 10, number), num_predict=1)
        run.finish()
    prefix = run.engine.loaded.tokenizer.encode("what is ", add_special=True)
    assert [run.done(number).cached for number in range(3)] == [0, 0, len(prefix)]
    assert [positions[0] for positions in run.positions].count(0) == 2  # no pass for the prefix alone


def test_rows_of_an_image_share_a_batch_of_any_size(seeing: LoadedModel) -> None:
    run = watched(seeing, batch_size=2)
    run.submit_inputs(0, inputs(run, "long text before [img-0] the image", 1), num_predict=2)
    run.finish()
    with_image = [batch for batch in run.batches if batch.payloads]
    assert [[len(part) for _, part in batch.payloads] for batch in with_image] == [[4]]
    assert [batch.spans for batch in with_image] == [[(3, 7)]]


def test_an_image_may_be_longer_than_a_batch(tmp_path: Path) -> None:
    config = VISION_MODELS["qwen25vl"]()
    loaded = load_model(config.write(tmp_path, original(config)).model)
    run = watched(loaded, batch_size=4)
    run.submit_inputs(0, inputs(run, "text [img-0] text", 1), num_predict=2)
    run.finish()
    pieces = [part for batch in run.batches for _, part in batch.payloads]
    assert [(part.begin, part.end) for part in pieces] == [(0, 4), (4, 6)]
    assert run.engine.images.encoded == 1
    whole = watched(loaded)
    whole.submit_inputs(0, inputs(whole, "text [img-0] text", 1), num_predict=2)
    whole.finish()
    assert run.tokens(0) == whole.tokens(0)


def test_an_image_that_cannot_be_encoded_fails_its_request_alone(
    seeing: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = watched(seeing)
    run.submit(0, "hello", num_predict=8)
    run.submit_inputs(1, inputs(run, "a [img-0]", 1), num_predict=2)
    run.submit_inputs(2, inputs(run, "b [img-0]", 2), num_predict=2)
    encode = type(seeing.vision).encode
    bad = inputs(run, "[img-0]", 1)[-5].payload.image.pixels

    def failing(self: Any, prepared: Any, slice_rows: int) -> Iterator[None]:
        if prepared is bad:
            raise ValueError("this one")
        return encode(self, prepared, slice_rows)

    monkeypatch.setattr(type(seeing.vision), "encode", failing)
    run.finish()
    assert (run.failed(1).kind, len(run.tokens(0)), len(run.tokens(2))) == ("GenerationError", 8, 2)
    assert run.leaked() == 0


def test_the_image_of_a_cancelled_request_is_dropped(seeing: LoadedModel, slices: list[int]) -> None:
    run = watched(seeing, batch_size=4)
    run.submit(0, "hello", num_predict=40)
    run.engine.step()
    run.submit_inputs(1, inputs(run, "look [img-0]", 1), num_predict=2)
    run.engine.step()
    assert slices
    run.engine.cancel(1)
    run.finish()
    assert run.engine.images.encoded == 0
    assert run.engine.images._work is None


def test_kept_images_are_bounded(seeing: LoadedModel) -> None:
    run = watched(seeing)
    size = 56 * 56 * 3 + 4 * 64 * 4
    images = run.engine.images = Images(seeing.vision, 32, kept_bytes=3 * size)
    for number in range(6):
        run.submit_inputs(number, inputs(run, "[img-0]", number), num_predict=1)
        if number == 4:
            inputs(run, "[img-0]", 2)  # used once more
        run.finish()
    kept = list(images._known)
    expected = [images.read([file_of(picture(seed))])[0].digest for seed in (4, 2, 5)]
    assert set(kept) <= {*expected}
    assert expected[1] in kept
    assert images.encoded == 6
    assert run.leaked() == 0
    taken = [image.pixels.nbytes + image.states.nbytes for image in images._known.values()]
    assert 0 < sum(taken) <= 3 * size


def test_images_of_requests_cancelled_before_encoding_are_bounded_too(seeing: LoadedModel) -> None:
    images = Images(seeing.vision, 32, kept_bytes=3 * 56 * 56 * 3)
    for seed in range(6):
        images.read([file_of(picture(seed))])
    (found,) = images.read([file_of(picture(3))])
    assert len(images._known) == 3
    assert found.digest in images._known
    images.close()


def test_evaluated_images_are_dropped_and_encoded_again_if_needed(seeing: LoadedModel) -> None:
    run = watched(seeing)
    images = run.engine.images = Images(seeing.vision, 32, kept_bytes=0)
    text = "a [img-0] then [img-1] and [img-2]"
    items = inputs(run, text, 1, 2, 3)
    run.submit_inputs(0, items, num_predict=12)
    run.engine.step()
    while run.tokens(0) == []:
        run.engine.step()
    held = {id(item.payload.image): item.payload.image for item in items if item.payload}
    assert [image.states is None for image in held.values()] == [True, True, False]
    run.engine.scheduler._preempt(run.engine.scheduler.running[0])
    while run.engine.prefix_cache.evict():
        pass
    run.finish()
    assert images.encoded == 6 - 1  # the last image is still kept
    alone = watched(seeing)
    alone.submit_inputs(0, inputs(alone, text, 1, 2, 3), num_predict=12)
    alone.finish()
    assert run.tokens(0) == alone.tokens(0)


def test_the_number_of_images_in_a_request_is_limited(seeing: LoadedModel) -> None:
    run = watched(seeing)
    files = [file_of(picture(seed, 20, 20)) for seed in range(50)]
    assert len(run.engine.images.read(files)) == 50
    text = "".join(f"[img-{number}]" for number in range(50))
    run = watched(seeing, context=512)
    run.submit_inputs(0, inputs(run, text, *range(50)), num_predict=1)
    run.finish()
    assert (len(run.tokens(0)), run.engine.images.encoded) == (1, 50)
    with pytest.raises(ImageError, match=r"50 images, and at most 3 are allowed \(PUNA_MAX_IMAGES\)"):
        run.engine.images.read(files, ImageLimits(count=3))
    with pytest.raises(ImageError, match="image 2 of 2 is empty"):
        run.engine.images.read([files[0], b""])
    with pytest.raises(ImageError, match="more than 1000 pixels together"):
        run.engine.images.read(
            [file_of(picture(seed, 20, 30)) for seed in (70, 71)], ImageLimits(pixels_together=1000)
        )


# --- files -------------------------------------------------------------------------------------------------


def test_a_tower_in_its_own_file_gives_the_same_answer(seeing: LoadedModel, tmp_path: Path) -> None:
    config = VISION_MODELS["gemma3"]()
    layout = config.write(tmp_path, original(config), apart=True)
    blind = load_model(layout.model)
    assert (blind.vision, Run(blind).engine.images) == (None, None)
    with (
        puna.load(layout.model) as model,
        pytest.raises(RequestError, match=r"text\.gguf has no vision tower"),
    ):
        model.chat([{"role": "user", "content": "see?", "images": [file_of(picture(1))]}])
    apart = load_model(layout.model, projector=layout.projector)
    answers = []
    for loaded in (seeing, apart):
        run = watched(loaded)
        run.submit_inputs(0, inputs(run, "see [img-0]?", 1), num_predict=8)
        run.finish()
        answers.append(run.tokens(0))
    assert answers[0] == answers[1]
