"""Models run by llama.cpp behind Puna's engine.

A model Puna lacks is compared with transformers, others with Puna's own engine.

Run by `make test-peers`, which builds llama-cpp-python.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from puna.batch import Batch
from puna.errors import ContextLengthError, ModelError, OptionError, RequestError, UnsupportedModelError
from puna.gguf import open_gguf
from puna.kvcache.types import KVTypes
from puna.model.load import LoadedModel, LoadSettings, load_model
from puna.options import LLAMACPP, PUNA, Placement
from puna.tokenizer import tokenizer_from_gguf
from tests.e2e.servers import Server, add_model, running
from tests.engine.runs import Run, Watched
from tests.tiny.bert import TinyBert, tiny_bert_gguf
from tests.tiny.decoders import GEMMA2, tiny_decoder_gguf
from tests.tiny.forward import logits_of
from tests.tiny.llama import tiny_llama_gguf
from tests.tiny.mamba import FALCON_H1, MAMBA2
from tests.tiny.olmo import TinyOlmo, tiny_olmo_gguf
from tests.tiny.rwkv import ARWKV7, RWKV7

pytestmark = pytest.mark.peers
pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: run make test-peers")

OLMO = TinyOlmo()
PROMPTS = [[3, 1, 4, 1, 5], list(range(40)), [200], [250, 7] * 10]
#: llama.cpp reads RWKV heads in whole vectors, beyond the end of shorter ones.
WHOLE_HEADS = {"hidden": 128, "dim": 64}
GREEDY: dict[str, Any] = {"temperature": 0.0, "num_predict": 20, "ignore_eos": True}


def on_llamacpp(path: Path, **settings: Any) -> LoadedModel:
    return load_model(path, LoadSettings(engine=LLAMACPP, **settings))


@pytest.fixture(scope="module")
def theirs() -> Any:
    return OLMO.build()


@pytest.fixture(scope="module")
def olmo_file(tmp_path_factory: pytest.TempPathFactory, theirs: Any) -> Path:
    return tiny_olmo_gguf(tmp_path_factory.mktemp("olmo") / "olmo.gguf", OLMO, theirs)


@pytest.fixture(scope="module")
def olmo(olmo_file: Path) -> LoadedModel:
    return load_model(olmo_file)  # without an engine setting: Puna lacks the model


@pytest.fixture
def run(olmo: LoadedModel) -> Iterator[Run]:
    made = Run(olmo)
    yield made
    made.engine.close()


def both(path: Path, **settings: Any) -> list[Run]:
    """Return the model at `path` running on Puna's own engine and on llama.cpp."""
    return [Run(load_model(path, LoadSettings(engine=engine)), **settings) for engine in (PUNA, LLAMACPP)]


# --- numbers ---------------------------------------------------------------------------------------------


def test_unsupported_model_has_the_log_probabilities_of_transformers(run: Run, theirs: Any) -> None:
    tokens = torch.randint(256, (60,), generator=torch.Generator().manual_seed(1)).tolist()
    run.submit(0, tokens, prompt_logprobs=True, num_predict=0)
    run.finish()
    with torch.inference_mode():
        expected = torch.log_softmax(theirs(torch.tensor([tokens])).logits[0], dim=-1)
    found = run.scored(0)
    assert [token for token, _ in found] == tokens
    for position, (token, value) in enumerate(found[1:]):
        assert value == pytest.approx(float(expected[position, token]), abs=1e-4)


def test_greedy_output_is_that_of_transformers_and_requests_share_forward_passes(
    run: Run, theirs: Any
) -> None:
    for number, prompt in enumerate(PROMPTS):
        run.submit(number, prompt, **GREEDY)
    run.finish()
    assert max(run.rows[-10:]) == len(PROMPTS)  # one row per request
    assert len(run.rows) < 30  # rather than a step for each of four times 20 tokens
    for number, prompt in enumerate(PROMPTS):
        with torch.inference_mode():
            ids = torch.tensor([prompt])
            answer = theirs.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False,
                eos_token_id=None, pad_token_id=0,
            )  # fmt: skip
        assert run.tokens(number) == answer[0, len(prompt) :].tolist()


@pytest.mark.parametrize(
    ("tiny", "kind"),
    [
        (GEMMA2, "causal"),
        (MAMBA2, "recurrent"),
        (FALCON_H1, "recurrent"),
        (dataclasses.replace(RWKV7, **WHOLE_HEADS), "recurrent"),
        (dataclasses.replace(ARWKV7, **WHOLE_HEADS), "recurrent"),
    ],
    ids=["windows", "states", "both", "rwkv7", "arwkv7"],
)
def test_both_engines_generate_the_same_tokens(tmp_path: Path, tiny: Any, kind: str) -> None:
    """Windows, states, and states with keys: alone, batched, and continued after an earlier answer."""
    path = tiny_decoder_gguf(tmp_path / "model.gguf", tiny)
    answers = []
    for run in both(path):
        for number, prompt in enumerate(PROMPTS):
            run.submit(number, prompt, **GREEDY)
        run.finish()
        first = [run.tokens(number) for number in range(len(PROMPTS))]
        conversation = [*PROMPTS[1], *first[1]]
        run.submit(9, conversation, **{**GREEDY, "num_predict": 3})
        run.finish()
        assert run.done(9).cached == len(conversation) - 1
        answers.append([*first, run.tokens(9)])
    assert [counts.kind for counts in run.engine.cache.counts()] == [kind]
    assert answers[0] == answers[1]


def test_encoder_and_decoder_embeddings_are_those_of_puna(tmp_path: Path) -> None:
    texts = ["once upon a time", "cat", "there was a cat", *(["time " * 12] * 5)]
    bert = tiny_bert_gguf(tmp_path / "bert.gguf", TinyBert())
    llama = tiny_llama_gguf(tmp_path / "llama.gguf")
    for path in (bert, llama):
        ours, other = both(path, context=64, batch_size=32)
        for pooling in (None, "mean", "cls"):
            vectors = []
            for made in (ours, other):
                made.events.clear()
                made.embed(0, *texts, pooling=pooling)
                made.finish()
                vectors.append(made.vectors(0))
            assert (vectors[0] * vectors[1]).sum(axis=1) == pytest.approx(1, abs=1e-4)


def test_embeddings_and_generation_in_one_batch_do_not_affect_each_other(run: Run) -> None:
    run.submit(0, PROMPTS[1], **GREEDY)
    run.finish()
    run.embed(1, "hello world")
    run.finish()
    run.engine.prefix_cache.evict()
    run.submit(2, PROMPTS[1], **{**GREEDY, "cache_prompt": False})
    for _ in range(3):
        run.engine.step()
    run.embed(3, "hello world", cache_prompt=False)
    run.finish()
    assert run.tokens(2) == run.tokens(0)
    assert run.vectors(3) == pytest.approx(run.vectors(1), abs=1e-5)


# --- guarantees of the engine ------------------------------------------------------------------------------


def test_cached_prefix_is_shared_without_copies_and_continued(olmo: LoadedModel) -> None:
    run = Watched(olmo)
    run.submit(0, PROMPTS[1], **GREEDY)
    run.finish()
    run.batches.clear()
    run.submit(1, [*PROMPTS[1], 9, 9], **GREEDY)
    run.submit(2, [*PROMPTS[1], 8, 8], **GREEDY)
    run.finish()
    assert [run.done(number).cached for number in (1, 2)] == [40, 40]
    assert max(len(batch) for batch in run.batches) == 4
    fresh = Run(olmo)
    for number, tail in ((1, [9, 9]), (2, [8, 8])):
        fresh.submit(number, [*PROMPTS[1], *tail], cache_prompt=False, **GREEDY)
    fresh.finish()
    assert [run.tokens(number) for number in (1, 2)] == [fresh.tokens(number) for number in (1, 2)]


@pytest.mark.parametrize("cache_prompt", [False, True], ids=["alone", "shared"])
def test_full_context_shifts_or_rereads_cells_that_others_share(tmp_path: Path, cache_prompt: bool) -> None:
    answers = []
    for run in both(tiny_llama_gguf(tmp_path / "llama.gguf"), parallel=2):
        settings = {**GREEDY, "num_predict": 80, "num_keep": 4, "cache_prompt": cache_prompt}
        run.submit(0, PROMPTS[1], **settings)
        if cache_prompt:  # a request with the same prefix shares the cells to be moved
            run.submit(1, [*PROMPTS[1], 7], **{**settings, "num_predict": 10})
        run.finish()
        assert run.done(0).shifted > 0
        answers.append(run.tokens(0))
    if not cache_prompt:
        assert answers[0] == answers[1]


def test_overlong_prompts_are_truncated_or_refused_as_in_puna(run: Run) -> None:
    run.submit(0, [5] * 100, **GREEDY)
    run.finish()
    assert run.done(0).truncated > 0
    with pytest.raises(ContextLengthError, match="100 tokens > 64"):
        run.submit(1, [5] * 100, truncate=False, **GREEDY)
    run.submit(2, PROMPTS[1], **{**GREEDY, "shift": False, "num_predict": 80})
    run.finish()
    assert (run.done(2).reason, run.done(2).eval_count) == ("length", 25)


def test_rejected_drafts_leave_no_trace(run: Run) -> None:
    repeated = [7, 8, 9, 10] * 8
    run.submit(0, repeated, **GREEDY)
    run.finish()
    run.submit(1, repeated, speculate="prompt", **GREEDY)
    run.finish()
    assert run.tokens(1) == run.tokens(0)


def test_cancelled_request_frees_its_cells(run: Run) -> None:
    run.submit(0, PROMPTS[1], **{**GREEDY, "cache_prompt": False})
    for _ in range(3):
        run.engine.step()
    run.engine.cancel(0)
    run.finish()
    assert run.engine.active == 0
    assert [counts.used for counts in run.engine.cache.counts()] == [0]


def test_recurrent_state_is_shared_whole_or_not_at_all_and_a_forward_pass_can_be_undone(
    tmp_path: Path,
) -> None:
    loaded = on_llamacpp(tiny_decoder_gguf(tmp_path / "mamba.gguf", MAMBA2))
    cache = loaded.make_cache(sequences=3, context=64, types=KVTypes.parse("f32"))

    def read(sequence: int, tokens: list[int]) -> torch.Tensor:
        begin = cache.length(sequence)
        batch = Batch.of(
            tokens, [*range(begin, begin + len(tokens))], [sequence] * len(tokens), [len(tokens) - 1]
        )
        cache.start_forward(batch)
        return logits_of(loaded.model, batch, cache)

    read(0, PROMPTS[0])
    cache.copy_prefix(0, 1, 3)
    assert cache.length(1) == 0
    cache.copy_prefix(0, 1, 5)
    assert cache.can_resume(1, 5)
    assert not cache.can_resume(1, 4)
    cache.start_forward(Batch.of([7], [5], [1], [0]))
    cache.undo_forward()
    assert torch.equal(read(1, [9]), read(0, [9]))
    cache.close()


def test_unusable_cache_types_and_sequence_counts_are_refused(olmo: LoadedModel) -> None:
    assert len(Run(olmo, cache_types=KVTypes.parse("bf16,f32")).one(PROMPTS[1], **GREEDY)[0]) == 20
    with pytest.raises(ModelError, match="q8_0 with block size 32 does not divide n_embd_head_k=16"):
        Run(olmo, cache_types=KVTypes.parse("q8_0,f16"))
    with pytest.raises(RequestError, match="at most 256"):
        Run(olmo, parallel=300)


# --- files -------------------------------------------------------------------------------------------------


def test_llama_cpp_vocabulary_encodes_and_decodes_as_puna_does(tmp_path: Path) -> None:
    from puna.model.llamacpp.tokenizer import llamacpp_tokenizer

    path = tiny_llama_gguf(tmp_path / "llama.gguf")
    model: Any = on_llamacpp(path).model
    with open_gguf(path) as file:
        ours, other = tokenizer_from_gguf(file), llamacpp_tokenizer(file, model)
    for text in ("hello world, once upon a time", "<|im_start|>user\nhi<|im_end|>", "ß 日本 \x00 🙂", ""):
        assert other.encode(text) == ours.encode(text)
        assert other.decode(other.encode(text)) == ours.decode(ours.encode(text))
    assert (other.bos_id, other.eos_id, other.add_bos) == (ours.bos_id, ours.eos_id, ours.add_bos)
    assert other.eos_ids == ours.eos_ids
    assert [other.piece(id) for id in range(ours.vocab_size)] == [
        ours.piece(id) for id in range(ours.vocab_size)
    ]


def test_placement_is_honoured_or_warned_about(olmo_file: Path) -> None:
    import llama_cpp

    wanted = Placement(num_gpu=1, tensor_split=(3.0, 1.0), use_mmap=False)
    loaded = on_llamacpp(olmo_file, placement=wanted)
    assert bool(loaded.warnings) is not bool(llama_cpp.llama_supports_gpu_offload())
    assert Run(loaded).one(PROMPTS[0], **GREEDY)[1].eval_count == 20
    with pytest.raises(OptionError, match="tensor_split"):
        on_llamacpp(olmo_file, placement=Placement(tensor_split=(1.0,) * 999))


def test_models_llama_cpp_rejects_are_refused_with_its_message(tmp_path: Path, olmo_file: Path) -> None:
    strange = tmp_path / "strange.gguf"
    strange.write_bytes(olmo_file.read_bytes().replace(b"olmo", b"olma"))
    with pytest.raises(UnsupportedModelError, match="unknown model architecture: 'olma'"):
        load_model(strange)
    lacking = tmp_path / "lacking.gguf"
    lacking.write_bytes(olmo_file.read_bytes().replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_pu.weight"))
    with pytest.raises(UnsupportedModelError, match=r"blk\.1\.ffn_up\.weight"):
        load_model(lacking)


# --- the server --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, olmo_file: Path) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("models")) as started:
        add_model(started, "olmo", olmo_file)
        add_model(started, "tiny", tiny_llama_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf"))
        started.client.create(model="there", from_="tiny", parameters={"engine": "llamacpp"})
        yield started


def ask(server: Server, model: str, **options: Any) -> Any:
    options = {"temperature": 0, "num_predict": 8, **options}
    return server.http.post(
        "/api/generate", json={"model": model, "prompt": "hello", "stream": False, "options": options}
    ).json()


def test_server_runs_each_model_on_its_engine_and_names_it(server: Server) -> None:
    assert ask(server, "olmo")["eval_count"] == 8
    own = ask(server, "tiny")["response"]
    assert [model["engine"] for model in server.http.get("/api/ps").json()["models"]] == ["puna", "llamacpp"]
    shown = {
        name: server.http.post("/api/show", json={"model": name}).json()["engine"]
        for name in ("olmo", "tiny", "there")
    }
    assert shown == {"olmo": "llamacpp", "tiny": "puna", "there": "llamacpp"}
    assert ask(server, "there")["response"] == own
    assert ask(server, "tiny", engine="llamacpp")["response"] == own
    assert ask(server, "olmo", engine="puna")["error"].startswith(("sha256", "olmo", "architecture"))


def test_server_passes_placement_to_the_engine(server: Server) -> None:
    assert "warnings" not in ask(server, "olmo", use_mmap=False)
    (warning,) = ask(server, "olmo", num_gpu=1).get("warnings", ["built without GPUs"])
    assert "built without GPUs" in warning
    (vector,) = server.client.embed(model="olmo", input=["hello"]).embeddings
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-4)
