"""The devices that compute a model: a GPU if it fits, or several with some layers each."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from puna.cli.manage import processor
from puna.engine.engine import Engine
from puna.engine.room import EngineSizes
from puna.errors import InsufficientMemoryError
from puna.gguf import open_gguf
from puna.model.load import LoadedModel, LoadSettings, load_model, planned_forecast
from puna.model.memory import Forecast, experts_before
from puna.model.placement import (
    DeviceRoom,
    DeviceStage,
    UsableDevices,
    ends_of_stages,
    parallel_placement,
    placements,
)
from puna.ops import Weight, default_backend
from puna.options import Placement
from puna.runner.process import _loaded
from tests.stand_in_gpus import memory_for, use_gpus
from tests.tiny.bert import TinyBert, tiny_bert_gguf
from tests.tiny.decoders import tiny_decoder_gguf
from tests.tiny.gemmas import TinyGemma3n
from tests.tiny.llama import TinyLlama, tiny_llama_gguf

LAYERS = 6
SETTINGS = LoadSettings(context=64, batch_size=64)
PLENTY = 1 << 30


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_gguf(tmp_path_factory.mktemp("placement") / "llama.gguf", TinyLlama(layers=LAYERS))


@pytest.fixture(autouse=True)
def processor_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tests say which GPUs there are."""
    monkeypatch.delenv("PUNA_OPS", raising=False)


def placed(path: Path, **wanted: object) -> LoadedModel:
    return load_model(path, LoadSettings(context=64, batch_size=64, placement=Placement(**wanted)))  # type: ignore[arg-type]


def layers_of(loaded: LoadedModel) -> dict[str, int]:
    return {ops.device: count for ops, count in loaded.layers_on.items()}


# --- how many layers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free", "first", "places", "most", "ends"),
    [
        ((100, 100), 10, range(1, 11), 10, [9, 10]),  # 10 bytes of the first are for what is no layer
        ((55, 25), 10, range(1, 11), 10, [4, 6]),
        ((55, 25), 10, [2, 5, 10], 10, [2, 2]),  # three more do not fit the second
        ((55, 35), 10, [2, 5, 10], 10, [2, 5]),
        ((100, 100), 10, range(1, 11), 4, [4, 4]),
        ((15, 100), 10, range(1, 11), 10, [0, 9]),  # then the second is first
        ((5, 5), 10, range(1, 11), 10, [0, 0]),
    ],
)
def test_each_device_takes_as_many_layers_as_fit(
    free: tuple[int, ...], first: int, places: range | list[int], most: int, ends: list[int]
) -> None:
    rooms = [DeviceRoom(size, [10] * 10, [0] * 10, 0, first, most) for size in free]
    assert ends_of_stages(rooms, list(places)) == ends


def test_layers_of_different_sizes_are_counted_one_by_one() -> None:
    room = DeviceRoom(100, [5, 50, 5, 50], [0, 30, 0, 0], 20, 15, 4)
    assert ends_of_stages([room], [1, 2, 3, 4]) == [3]
    assert ends_of_stages([replace(room, free=65)], [1, 2, 3, 4]) == [1]
    assert ends_of_stages([replace(room, free=65)], [1, 2, 3, 4], host_experts=2) == [3]


# --- one GPU ----------------------------------------------------------------------------------------


def test_a_model_that_fits_is_computed_by_the_gpu(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [gpu] = use_gpus(monkeypatch, PLENTY)
    loaded = placed(path)
    assert loaded.ops is gpu
    assert (loaded.layers_on_gpu, loaded.fitting, loaded.warnings) == (LAYERS, LAYERS, ())


@pytest.mark.parametrize("layers", [1, 4, 5])
def test_layers_that_do_not_fit_are_computed_by_the_processor(
    path: Path, monkeypatch: pytest.MonkeyPatch, layers: int
) -> None:
    use_gpus(monkeypatch, PLENTY)
    use_gpus(monkeypatch, memory_for(path, layers, SETTINGS))
    loaded = placed(path)
    assert layers_of(loaded) == {"GPU 0": layers, "CPU": LAYERS - layers}
    assert (loaded.layers_on_gpu, loaded.fitting) == (layers, layers)
    assert 0 < loaded.vram_bytes < loaded.weight_bytes
    assert loaded.warnings == (
        f"the processor computes the other layers: GPU 0 had memory for {layers} of {LAYERS}",
    )


def test_a_model_of_which_nothing_fits_is_computed_by_the_processor(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_gpus(monkeypatch, 1000)
    loaded = placed(path)
    assert (layers_of(loaded), loaded.layers_on_gpu, loaded.vram_bytes) == ({"CPU": LAYERS}, 0, 0)
    (warning,) = loaded.warnings
    assert warning.startswith("the processor computes this model, which does not fit on the GPU: ")
    assert "requires more GPU 0 memory" in warning


def test_num_gpu_is_the_number_of_layers_on_the_gpu(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpus(monkeypatch, PLENTY)
    for layers in (1, 3):
        loaded = placed(path, num_gpu=layers)
        assert layers_of(loaded) == {"GPU 0": layers, "CPU": LAYERS - layers}
        assert (loaded.fitting, loaded.warnings) == (LAYERS, ())
    assert layers_of(placed(path, num_gpu=LAYERS)) == layers_of(placed(path, num_gpu=99)) == {"GPU 0": LAYERS}
    none = placed(path, num_gpu=0)
    assert (layers_of(none), none.warnings) == ({"CPU": LAYERS}, ())
    assert none.fitting > LAYERS, "that was not asked"
    use_gpus(monkeypatch, memory_for(path, 2, SETTINGS))
    fewer = placed(path, num_gpu=4)
    assert (layers_of(fewer), fewer.fitting) == ({"GPU 0": 2, "CPU": 4}, 2)
    assert fewer.warnings == (
        "the processor computes the other layers: GPU 0 had memory for 2 of the 4 that num_gpu asks for",
    )


def test_models_that_cannot_be_divided_are_on_one_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_bert_gguf(tmp_path / "bert.gguf", TinyBert())
    use_gpus(monkeypatch, PLENTY)
    loaded = placed(path, num_gpu=1)
    assert set(layers_of(loaded)) == {"GPU 0"}
    assert loaded.warnings == ("its layers cannot be divided, so that all are on GPU 0",)
    use_gpus(monkeypatch, 100_000)
    assert set(layers_of(placed(path))) == {"CPU"}


def test_a_model_is_cut_where_that_is_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_decoder_gguf(tmp_path / "gemma3n.gguf", TinyGemma3n())
    with open_gguf(path) as file:
        *cuts, count = Forecast(file).places_to_cut()
    assert 1 <= cuts[-1] < count - 1, "later layers use keys of earlier ones"
    use_gpus(monkeypatch, PLENTY)
    loaded = placed(path, num_gpu=count - 1)
    assert layers_of(loaded) == {"GPU 0": cuts[-1], "CPU": count - cuts[-1]}
    monkeypatch.setattr(Forecast, "places_to_cut", lambda self: [2, count])
    none = placed(path, num_gpu=1)
    assert layers_of(none) == {"CPU": count}
    assert none.warnings == ("it cannot be divided before layer 2",)


def test_a_context_must_fit_although_none_was_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_llama_gguf(tmp_path / "llama.gguf", TinyLlama(layers=LAYERS, context=8192))
    [gpu] = use_gpus(monkeypatch, PLENTY)
    with open_gguf(path) as file:
        weights = Forecast(file, ops=gpu).table(context=0, parallel=1, batch=512).host
    use_gpus(monkeypatch, weights + 1000)
    assert layers_of(load_model(path)) != {"GPU 0": LAYERS}, "there would be no room for a cache"


def test_fewer_layers_are_tried_when_memory_ends_while_loading(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_gpus(monkeypatch, PLENTY)
    [gpu] = use_gpus(monkeypatch, memory_for(path, 5, SETTINGS))
    pack: Any = gpu._converted  # type: ignore[attr-defined]
    left = [600_000]  # bytes, fewer than it says

    def converted(weight: Weight) -> Any:
        packed = pack(weight)
        left[0] -= packed.nbytes
        if left[0] < 0:
            left[0] += packed.nbytes
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        weakref.finalize(packed, lambda size=packed.nbytes: left.__setitem__(0, left[0] + size))
        return packed

    monkeypatch.setattr(gpu, "_converted", converted)
    loaded = placed(path)
    assert 0 < loaded.layers_on_gpu < 5
    (warning,) = loaded.warnings
    assert warning.endswith(f"GPU 0 had memory for {loaded.layers_on_gpu} of {LAYERS}")


def test_a_model_for_the_gpu_alone_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [gpu] = use_gpus(monkeypatch, 1000)
    with pytest.raises(InsufficientMemoryError, match="requires more GPU 0 memory"):
        load_model(path, ops=gpu)


def test_the_processor_needs_memory_for_its_layers(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpus(monkeypatch, PLENTY)
    use_gpus(monkeypatch, memory_for(path, 4, SETTINGS))
    monkeypatch.setattr("puna.machine.available_memory", lambda: 5_000_000)
    with pytest.raises(InsufficientMemoryError, match=r"system memory .* is there beside GPU 0"):
        placed(path)


def test_a_request_for_a_gpu_that_cannot_be_used_says_why(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("puna.model.load.backends", lambda gpu: [default_backend()])
    monkeypatch.setattr("puna.model.load.gpu_problem", lambda: "its driver is too old")
    loaded = load_model(path, LoadSettings(placement=Placement(num_gpu=99)))
    assert loaded.warnings == ("the processor computes this model: its driver is too old",)
    assert load_model(path).warnings == ()


def test_what_is_beside_the_model_takes_memory_from_layers(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_gpus(monkeypatch, PLENTY)
    most, four = memory_for(path, LAYERS, SETTINGS), memory_for(path, 4, SETTINGS)
    [gpu] = use_gpus(monkeypatch, most)
    with open_gguf(path) as file:
        ways = placements(
            UsableDevices([gpu], default_backend()), Placement(), lambda ops, _: Forecast(file, ops=ops),
            {"context": 64, "parallel": 1, "batch": 64}, beside=round((most - four) * 31 / 32),
        )  # fmt: skip
        lengths = [[len(stage) for stage in way.stages] for way in ways]
    assert lengths[:2] == [[LAYERS], [4, 2]]
    assert lengths[-1] == [LAYERS], "at last the processor alone"


# --- experts ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tiny = TinyLlama(layers=4, experts=4)
    return tiny_llama_gguf(tmp_path_factory.mktemp("placement") / "mixtral.gguf", tiny)


def expert_bytes(path: Path) -> list[int]:
    """Return the bytes of the experts of each layer, as float32."""
    with open_gguf(path) as file:
        sizes = {name: 4 * tensor.count for name, tensor in file.tensors.items() if "exps" in name}
        return [sum(size for name, size in sizes.items() if name.startswith(f"blk.{i}.")) for i in range(4)]


def test_experts_on_the_host_are_counted_there(mixtral: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [gpu] = use_gpus(monkeypatch, PLENTY)
    experts = expert_bytes(mixtral)
    with open_gguf(mixtral) as file:
        whole, part = (Forecast(file, ops=gpu, on_host=experts_before(layers)) for layers in (0, 2))
        tables = [each.table(context=64, parallel=1, batch=64) for each in (whole, part)]
        nbytes = {name: t.nbytes for name, t in file.tensors.items() if experts_before(2)(name)}
    process = tables[1].tokenizer + tables[1].process + tables[1].bookkeeping
    assert [table.on("CPU") for table in tables] == [0, sum(experts[:2]) + process]
    for layer, moved in enumerate((*experts[:2], 0, 0)):
        with_all, without = (table.layer(layer) for table in tables)
        assert (with_all.weights - without.weights, with_all.cache) == (moved, without.cache)
    assert part.vram_bytes == part.weight_bytes - sum(nbytes.values())


@pytest.mark.parametrize("layers", [1, 3])
def test_experts_of_first_layers_stay_on_the_host_before_layers_do(
    mixtral: Path, monkeypatch: pytest.MonkeyPatch, layers: int
) -> None:
    use_gpus(monkeypatch, PLENTY)
    missing = sum(expert_bytes(mixtral)[:layers])
    [gpu] = use_gpus(monkeypatch, memory_for(mixtral, 4, SETTINGS) - round((missing - 1) * 32 / 31))
    loaded = placed(mixtral)
    assert loaded.ops is gpu
    assert (layers_of(loaded), loaded.fitting) == ({"GPU 0": 4}, 4)
    assert loaded.warnings == (
        f"the processor computes the experts of {layers} layers: GPU 0 had no memory for them",
    )
    on_host = [each.feed_forward.experts.down.on_host for each in loaded.model.layers]  # type: ignore[attr-defined]
    assert on_host == [number < layers for number in range(4)]
    assert 0 < loaded.vram_bytes < loaded.weight_bytes


def test_a_gpu_for_few_layers_has_them_without_experts(
    mixtral: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_gpus(monkeypatch, PLENTY)
    experts = expert_bytes(mixtral)
    use_gpus(monkeypatch, memory_for(mixtral, 3, SETTINGS) - round(sum(experts[:3]) * 32 / 31))
    loaded = placed(mixtral)
    assert layers_of(loaded) == {"GPU 0": 3, "CPU": 1}
    assert layers_of(placed(mixtral, num_gpu=2)) == {"GPU 0": 2, "CPU": 2}


def test_the_host_must_have_room_for_what_stays_there(mixtral: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [gpu] = use_gpus(monkeypatch, PLENTY)
    monkeypatch.setattr("puna.machine.available_memory", lambda: 1000)
    with pytest.raises(InsufficientMemoryError, match=r"system memory .* is there beside GPU 0"):
        load_model(mixtral, stages=[DeviceStage(gpu, 0, 4, host_experts=4)])
    load_model(mixtral, ops=gpu)


# --- several GPUs -----------------------------------------------------------------------------------


def test_a_model_is_on_the_main_gpu_if_it_fits_and_otherwise_on_another(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_gpus(monkeypatch, PLENTY, PLENTY)
    assert layers_of(placed(path)) == {"GPU 0": LAYERS}
    assert layers_of(placed(path, main_gpu=1)) == {"GPU 1": LAYERS}
    use_gpus(monkeypatch, 1000, PLENTY)
    assert layers_of(placed(path)) == {"GPU 1": LAYERS}
    wrong = placed(path, main_gpu=2)
    assert (layers_of(wrong), wrong.warnings) == (
        {"GPU 1": LAYERS}, ("there is no GPU 2 for main_gpu",),
    )  # fmt: skip


def test_layers_fill_one_gpu_after_the_other_and_the_rest_is_for_the_processor(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_gpus(monkeypatch, PLENTY)
    two, three = memory_for(path, 2, SETTINGS), memory_for(path, 3, SETTINGS, first=False)
    use_gpus(monkeypatch, two, three)
    loaded = placed(path)
    assert layers_of(loaded) == {"GPU 0": 2, "GPU 1": 3, "CPU": 1}
    assert loaded.gpus == 2
    (warning,) = loaded.warnings
    assert warning.endswith("GPU 0 and GPU 1 had memory for 5 of 6")
    use_gpus(monkeypatch, three, memory_for(path, 3, SETTINGS))
    assert layers_of(placed(path, main_gpu=1)) == {"GPU 1": 3, "GPU 0": 3}


def test_tensor_split_gives_shares_of_the_layers(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpus(monkeypatch, PLENTY, PLENTY)
    assert layers_of(placed(path, tensor_split=(1, 2))) == {"GPU 0": 2, "GPU 1": 4}
    assert layers_of(placed(path, tensor_split=(1, 2), main_gpu=1)) == {"GPU 1": 4, "GPU 0": 2}
    assert layers_of(placed(path, tensor_split=(1, 1), num_gpu=4)) == {"GPU 0": 2, "GPU 1": 2, "CPU": 2}
    assert layers_of(placed(path, tensor_split=(0, 1))) == {"GPU 1": LAYERS}
    assert layers_of(placed(path, tensor_split=(0, 0))) == {"GPU 0": LAYERS}
    assert placed(path, tensor_split=(1, 1, 2)).warnings == (
        "tensor_split has 3 shares, and the number of GPUs is 2",
    )


# --- what users see ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_gpu", "memory", "share", "device", "fitting"),
    [
        (-1, PLENTY, "100% GPU", "GPU 0", LAYERS),
        (0, PLENTY, "100% CPU", "CPU", None),
        (-1, 1000, "100% CPU", "CPU", 0),  # no other num_gpu would help
        (3, PLENTY, "%/", "GPU 0 (3 of 6 layers) and CPU (3)", LAYERS),
    ],
)
def test_weights_and_caches_on_the_gpu_are_counted_there(
    path: Path, monkeypatch: pytest.MonkeyPatch, num_gpu: int, memory: int, share: str, device: str,
    fitting: int | None,
) -> None:  # fmt: skip
    use_gpus(monkeypatch, memory)
    engine = Engine(placed(path, num_gpu=num_gpu), EngineSizes(context=64), growable=True)
    info = _loaded(engine)
    assert share in processor(info.weight_bytes + info.cache_bytes, info.vram_bytes)
    assert (info.device, info.gpus) == (device, 0 if num_gpu == 0 else 1)
    assert info.fitting > LAYERS if fitting is None else info.fitting == fitting
    engine.close()


def test_a_forecast_shows_each_device(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpus(monkeypatch, PLENTY)
    memory = memory_for(path, 4, SETTINGS)
    use_gpus(monkeypatch, memory)
    with open_gguf(path) as file:
        table = planned_forecast(file, SETTINGS).table(context=64, parallel=1, batch=64)
    devices = {part.name: part.device for part in table.parts}
    assert list(devices) == ["input", *(f"layer {i}" for i in range(LAYERS)), "output"]
    assert [devices[f"layer {i}"] for i in range(LAYERS)] == ["GPU 0"] * 4 + ["CPU"] * 2
    assert table.on("GPU 0") <= memory
    assert table.total == table.on("GPU 0") + table.on("CPU")
    assert table.on("CPU") > table.tokenizer + table.process


# --- tensor parallelism -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "used", "warning"),
    [
        (Placement(), [0, 1], ""),
        (Placement(main_gpu=2), [2, 0], ""),
        (Placement(tensor_split=(0.0, 0.0)), [0, 1], ""),  # no shares at all, as with other placements
        (Placement(tensor_split=(0.0, 1.0, 1.0)), [1, 2], ""),
        (
            Placement(tensor_split=(3.0, 1.0)), [0, 1],
            "with PUNA_TENSOR_PARALLEL, all GPUs have the same share, not those of tensor_split",
        ),
        (
            Placement(num_gpu=5, main_gpu=7), [0, 1],
            "there is no GPU 7 for main_gpu; num_gpu has no effect beside PUNA_TENSOR_PARALLEL",
        ),
    ],
)  # fmt: skip
def test_ranks_are_on_the_gpus_that_options_name(
    wanted: Placement, used: list[int], warning: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = use_gpus(monkeypatch, PLENTY, PLENTY, PLENTY)
    found = parallel_placement(gpus, 2, wanted)
    [stage] = found.stages
    assert [gpus.index(ops) for ops in stage.ranks] == used
    assert stage.ops is stage.ranks[0]
    assert found.warning == warning
