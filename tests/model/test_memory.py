"""Memory forecasts of models against what they take in use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from puna import demo
from puna.errors import InsufficientMemoryError
from puna.gguf import GGMLType, open_gguf
from puna.kvcache.cells import CELL_BYTES, table_bytes
from puna.kvcache.types import F16_TYPES, KVTypes
from puna.model.load import load_model
from puna.model.memory import Forecast, MemoryTable, largest
from puna.nn.latent_attention import HeadLinear
from puna.nn.layers import StackedLinear
from puna.nn.module import Module
from puna.ops import ExpertNetworks, Weight
from tests.tiny.compressed import DEEPSEEK_V4
from tests.tiny.decoders import PHI3, QWEN3_MOE, tiny_decoder_gguf
from tests.tiny.gemma3 import TinyGemma3, tiny_gemma3_gguf
from tests.tiny.gemmas import TinyGemma3n
from tests.tiny.glm5_next import GLM5_NEXT
from tests.tiny.hybrids import QWEN4
from tests.tiny.latent import DEEPSEEK_V3, GLM_DSA, HY4
from tests.tiny.lfm2 import TinyLfm2, tiny_lfm2_gguf
from tests.tiny.llama import TinyLlama, tiny_llama_gguf
from tests.tiny.llama4 import TinyLlama4, tiny_llama4_gguf
from tests.tiny.minimax import MINIMAX_M3
from tests.tiny.mllama import TinyMllama, tiny_mllama_gguf

MIB = 2**20

MAKERS: dict[str, Callable[[Path], Path]] = {
    "llama": lambda path: tiny_llama_gguf(path),
    "tied": lambda path: tiny_llama_gguf(path, TinyLlama(tied=True), kind=GGMLType.Q8_0),
    "stacked": lambda path: tiny_llama_gguf(path, TinyLlama(experts=4)),
    "single": lambda path: tiny_llama_gguf(path, TinyLlama(experts=4, expert_tensors="single")),
    "joined": lambda path: tiny_llama_gguf(path, TinyLlama(experts=4, expert_tensors="joined")),
    "gemma3": lambda path: tiny_gemma3_gguf(path, TinyGemma3()),
    "llama4": lambda path: tiny_llama4_gguf(path, TinyLlama4()),
    "lfm2": lambda path: tiny_lfm2_gguf(path, TinyLfm2()),
    "mllama": lambda path: tiny_mllama_gguf(path, TinyMllama()),
    "gemma3n": lambda path: tiny_decoder_gguf(path, TinyGemma3n(spare=False)),
    "phi3": lambda path: tiny_decoder_gguf(path, PHI3),
    "qwen3moe": lambda path: tiny_decoder_gguf(path, QWEN3_MOE),
    "deepseek2": lambda path: tiny_decoder_gguf(path, DEEPSEEK_V3),
    "glm-dsa": lambda path: tiny_decoder_gguf(path, GLM_DSA),
    "minimax-m3": lambda path: tiny_decoder_gguf(path, MINIMAX_M3),
    "hy_v4": lambda path: tiny_decoder_gguf(path, HY4),
    "deepseek4": lambda path: tiny_decoder_gguf(path, DEEPSEEK_V4),
    "glm5-next": lambda path: tiny_decoder_gguf(path, GLM5_NEXT),
    "qwen4exp": lambda path: tiny_decoder_gguf(path, QWEN4),
}


@pytest.fixture(scope="module", params=MAKERS)
def model_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MAKERS[request.param](tmp_path_factory.mktemp("memory") / f"{request.param}.gguf")


def table_of(path: Path, types: KVTypes = F16_TYPES, **sizes: int) -> MemoryTable:
    with open_gguf(path) as file:
        return Forecast(file, types).table(**{"context": 256, "parallel": 2, "batch": 64, **sizes})


def held_weights(module: Any) -> Iterator[Weight]:
    """Yield all matrices of a loaded model."""
    for value in vars(module).values():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Module):
                yield from held_weights(each)
            elif isinstance(each, StackedLinear):
                yield from (linear.weight for linear in each.linears)
            elif isinstance(each, HeadLinear):
                yield from each.weights
            elif isinstance(each, ExpertNetworks):
                parts = (each.gate, each.up, each.down)
                yield from (part.weight for part in parts if part is not None)
            elif isinstance(getattr(each, "weight", None), Weight):
                yield each.weight


def test_weights_are_counted_as_kernels_hold_them(model_file: Path) -> None:
    held = {id(weight): weight for weight in held_weights(load_model(model_file).model)}
    matrices = sum(w.nbytes if w.packed is None else w.packed.nbytes for w in held.values())
    with open_gguf(model_file) as file:
        vectors = sum(4 * tensor.count for tensor in file.tensors.values() if len(tensor.shape) == 1)
    assert table_of(model_file).weights == pytest.approx(matrices + vectors, rel=0.01)


def test_caches_are_counted_as_created(model_file: Path) -> None:
    loaded = load_model(model_file)
    cache = loaded.make_cache(sequences=2, context=128)
    whole = loaded.make_cache(sequences=2, context=128, types=KVTypes.parse("f32"))
    expected = sum(cache.layer_bytes(sequences=2, capacity=256, batch=64).values())
    table = table_of(model_file, context=128)
    assert table.cache == expected <= cache.allocated_bytes
    if not any(name in model_file.name for name in ("gemma", "llama4", "deepseek4")):  # those forget
        assert table.cache == cache.allocated_bytes
    assert (
        table.cache < table_of(model_file, KVTypes.parse("f32"), context=128).cache <= whole.allocated_bytes
    )
    layers = [part for part in table.parts if part.name.startswith("layer ")]
    assert len(layers) == loaded.model.options.block_count
    assert all(part.weights > 0 for part in layers)


def test_a_windows_memory_does_not_grow_with_the_context(tmp_path: Path) -> None:
    """One batch is added in total, not one per sequence."""
    config = TinyGemma3(window=16, layers=4, pattern=[True, True, False, True], context=8192)
    path = tiny_gemma3_gguf(tmp_path / "gemma3.gguf", config)
    cell = 2 * config.kv_heads * config.head_dim * 2
    short, long = (table_of(path, context=context, parallel=4) for context in (1024, 8192))
    caches = [part.cache // cell for part in long.parts if part.name.startswith("layer ")]
    assert caches == [4 * 16 + 64, 4 * 16 + 64, 4 * 8192, 4 * 16 + 64]
    assert long.cache - short.cache == 4 * (8192 - 1024) * cell


def test_the_context_counts_up_to_the_trained_length(model_file: Path) -> None:
    """A longer context is cut to the trained one."""
    with open_gguf(model_file) as file:
        trained = file.get("context_length")
    most = table_of(model_file, context=trained)
    assert table_of(model_file, context=100 * trained) == most
    assert most.context == trained


def test_the_suggested_context_fits(tmp_path: Path) -> None:
    path = tiny_llama_gguf(tmp_path / "tiny.gguf", TinyLlama(context=100_000))
    with open_gguf(path) as file:
        forecast = Forecast(file)
    wanted = forecast.table(context=100_000, parallel=4, batch=512)
    forecast.check(wanted, wanted.total)
    base = forecast.table(context=0, parallel=4, batch=512).total
    available = base + 20 * MIB
    with pytest.raises(InsufficientMemoryError) as refusal:
        forecast.check(wanted, available)
    assert (refusal.value.needed, refusal.value.available) == (wanted.total, available)
    words = str(refusal.value).replace(",", "").split()
    fitting = int(words[words.index("num_ctx") + 1])
    assert forecast.table(context=fitting, parallel=4, batch=512).total <= available
    assert forecast.table(context=fitting + 1, parallel=4, batch=512).total > available
    assert wanted.bookkeeping == table_bytes(4, 100_000) + 4 * 100_000 * CELL_BYTES
    assert f"4 x 100000 tokens of context {(wanted.cache + wanted.bookkeeping) / MIB:.1f} MiB" in str(
        refusal.value
    )
    assert "with one request at a time" in str(refusal.value)
    with pytest.raises(InsufficientMemoryError, match="use a smaller model"):
        forecast.check(wanted, MIB)


def test_the_largest_fitting_number_is_found() -> None:
    assert [largest(lambda n: n <= 7, most) for most in (0, 5, 7, 100)] == [0, 5, 7, 7]
    assert largest(lambda n: False, 10) == 0


#: Loads a model, has it read long prompts and answer, and prints the memory taken.
RUN = """
import json, sys
from puna.engine.engine import Engine
from puna.engine.room import EngineSizes
from puna.protocol import Done, Generate
from puna.machine import process_memory
from puna.model.load import LoadSettings, load_model
from puna.options import Options
path, context, parallel = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
before = process_memory()
loaded = load_model(path, LoadSettings(context=context, parallel=parallel))
engine = Engine(loaded, EngineSizes(context=context, parallel=parallel))
ended = []
for number in range(2 * parallel):
    prompt = [(7 * number + i) % 250 for i in range(context - 8)]
    options = Options(temperature=0, num_predict=6)
    request = Generate(id=number, prompt=prompt, options=options, ignore_eos=True)
    engine.submit(request, lambda event: ended.append(event) if isinstance(event, Done) else None)
while engine.step():
    pass
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([len(ended), 1024 * peak - before, engine.cache.provided_bytes, 'torch' in sys.modules]))
"""


@pytest.mark.slow
@pytest.mark.process_memory
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.skipif(os.environ.get("PUNA_OPS") == "gpu", reason="torch takes memory of its own")
@pytest.mark.parametrize("name", ["demo", "middle"])
def test_a_process_takes_the_forecast_memory(name: str, tmp_path: Path) -> None:
    path, context = demo.path(), 1024
    if name == "middle":
        config = TinyLlama(hidden=512, feed_forward=1536, layers=4, heads=8, kv_heads=8, context=1024)
        path, context = tiny_llama_gguf(tmp_path / "m.gguf", config, kind=GGMLType.Q8_0), 1024
    said = table_of(path, context=context, parallel=4, batch=512)
    run = subprocess.run(
        [sys.executable, "-c", RUN, str(path), str(context), "4"], stdout=subprocess.PIPE, check=True
    )
    ended, grown, provided, torch = json.loads(run.stdout)
    assert ended == 8
    assert not torch
    assert provided <= said.cache
    assert said.total - said.process - 24 * MIB <= grown <= said.total
