"""Loading of models, by name from the store or from a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from puna.chat.templates.author import Author
from puna.chat.templates.choose import abilities
from puna.chat.templates.model_facts import ModelFacts, facts_at, projector_for, read_facts
from puna.chat.templates.renderer.client import Renderer
from puna.config import path_of
from puna.conversation.chat_model import ChatModel
from puna.engine.engine import Engine
from puna.engine.room import EngineSizes
from puna.errors import ModelNotFoundError, OptionError
from puna.gguf import open_gguf
from puna.gguf.metadata import scalar
from puna.kvcache.types import KVTypes
from puna.library.model import Model
from puna.library.requests import checked_number
from puna.model.load import LoadedModel, LoadSettings, load_model
from puna.ops import default_backend
from puna.options import AdapterFile, Options, drafts_itself, engine_from_env, int_range, speculate_from_env
from puna.store import Store, StoredModel
from puna.unknown import did_you_mean

if TYPE_CHECKING:
    from puna.convert import Converted

_MAX_PARALLEL: Final = 1024
#: How paths start, unlike the names of models.
_PATHS: Final = ("./", "../", "/", "~")


def load(
    model: str | Path,
    *,
    num_ctx: int | None = None,
    parallel: int = 8,
    num_thread: int = 0,
    kv_cache_type: str | None = None,
    draft: str | Path | None = None,
    engine: Literal["auto", "puna", "llamacpp"] | None = None,
    num_gpu: int | None = None,
    main_gpu: int | None = None,
    tensor_split: Sequence[float] | None = None,
    use_mmap: bool | None = None,
    projector: str | Path | None = None,
    adapters: Mapping[str, str | Path] | Sequence[str | Path] | None = None,
    progress: Callable[[int, int], None] | bool | None = None,
) -> Model:
    """Load a model by name (`demo`, or any in the store), or by the path of a GGUF file or a folder.

    A folder of safetensors files ("./SmolLM2-135M-Instruct") is converted first; the result is kept in
    `~/.puna/converted` (`PUNA_HOME`) until the folder changes.

    Args:
        num_ctx: context length of each request, in tokens. Default: the stored model's, else the length the
            model was trained for, reduced to fit memory.
        parallel: requests that run at once; others wait.
        num_thread: compute threads, at most one per processor; 0 uses the physical cores available to this
            process.
        kv_cache_type: type of cached keys and values: f16, q8_0, q4_0, bf16 or f32, or one for each, such as
            "q8_0,q4_0". Default: `PUNA_KV_CACHE_TYPE`, else f16.
        draft: a small model of the same family that drafts tokens for this one: faster, with the same
            answers.
        engine: the engine that runs the model: Puna's own ("puna"), llama.cpp ("llamacpp", from
            `puna[llamacpp]`), or llama.cpp only for models that Puna's own cannot run ("auto"). Default: the
            stored model's, else `PUNA_ENGINE`.
        num_gpu: the number of layers on GPUs, at most; -1, the default, puts as many there as fit, and the
            processor computes the others. llama.cpp puts all there, or that many.
        main_gpu: the GPU that is used first, or with llama.cpp the only one.
        tensor_split: shares of the layers for several GPUs.
        use_mmap: with llama.cpp, leave weights in the mapped file.
        projector: the GGUF file of the vision or audio tower, if it is separate from the model.
        adapters: LoRA adapters (GGUF files or PEFT folders) by the names that requests use, by default the
            file names; they follow those of the stored model. Requests without `lora` use all of them.
        progress: True shows a bar, in notebooks a widget, while a folder is converted and weights are read; a
            function is called with (bytes done, bytes in total) instead.

    Raises `ModelNotFoundError`, `GGUFError`, `UnsupportedModelError`, `OptionError`,
    `InsufficientMemoryError`, `UnavailableError`, ...
    """
    # Users write these as keyword arguments, so each setting is a parameter; inside, they are `LoadSettings`.
    if num_ctx is not None:
        checked_number("num_ctx", num_ctx, *int_range("num_ctx"))
    checked_number("parallel", parallel, 1, _MAX_PARALLEL)
    checked_number("num_thread", num_thread, *int_range("num_thread"))
    with _shown(progress) as report:
        source = _find(model, report)
        given = {
            "engine": engine,
            "num_gpu": num_gpu,
            "main_gpu": main_gpu,
            "tensor_split": tensor_split,
            "use_mmap": use_mmap,
        }
        chosen = Options.merge(source.stored.params if source.stored is not None else None, given)
        default_backend().set_threads(num_thread)
        facts, context = source.read(num_ctx or chosen.num_ctx)
        if projector is None:
            projector = source.projector()
        author = source.author(facts, None if projector is None else facts_at(Path(projector)))
        settings = LoadSettings(
            context=context,
            parallel=parallel,
            cache_types=KVTypes.from_env() if kv_cache_type is None else KVTypes.parse(kv_cache_type),
            prediction_heads=drafts_itself(speculate_from_env()),
            engine=chosen.engine or engine_from_env(),
            placement=chosen.placement,
        )
        renderer = Renderer()
        if not facts.embeds:
            renderer.start()  # while the model is read
        draft = draft or chosen.draft
        loaded = load_model(
            source.path,
            settings,
            draft=_find(draft, report).path if draft else None,
            projector=projector,
            adapters=source.adapters(adapters),
            progress=report,
        )
        return Model(ChatModel(_started(loaded, settings), facts, renderer), author)


@contextmanager
def _shown(progress: Callable[[int, int], None] | bool | None) -> Iterator[Callable[[int, int], None] | None]:
    """Yield the function to call with (bytes done, bytes in total); it moves a bar if `progress` is True."""
    if callable(progress):
        yield progress
        return
    if not progress:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("Loading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _started(loaded: LoadedModel, settings: LoadSettings) -> Engine:
    sizes = EngineSizes(
        context=settings.context, parallel=settings.parallel, cache_types=settings.cache_types
    )
    engine = Engine(loaded, sizes, speculate=speculate_from_env())
    engine.start()
    return engine


@dataclass(frozen=True)
class _Source:
    """A model's file, with its entry in the store if it was named, or all that a folder was converted to."""

    path: Path
    stored: StoredModel | None = None
    parts: Converted | None = None

    def read(self, context: int | None) -> tuple[ModelFacts, int]:
        """Return the file's facts, and `context` limited to the model's own (0 if None)."""
        with open_gguf(self.path) as file:
            if context is not None:
                context = min(context, scalar(file, "context_length", 0) or context)
            return read_facts(file), context or 0

    def projector(self) -> Path | None:
        """Return the file of the model's separate towers, or None."""
        if self.stored is not None:
            return projector_for(self.stored.projector_paths, self.path)
        return self.parts.projector if self.parts is not None else None

    def author(self, facts: ModelFacts, towers: ModelFacts | None) -> Author:
        if self.stored is not None:
            return Author.of(self.stored)
        return Author(self.path.name, lambda: abilities(facts, towers=towers))

    def adapters(self, given: Mapping[str, str | Path] | Sequence[str | Path] | None) -> list[AdapterFile]:
        """Return the model's own adapters, followed by those `given`."""
        if isinstance(given, str | Path):
            raise OptionError("adapters must be a list of paths, or a mapping from names to paths")
        named = given.items() if isinstance(given, Mapping) else (("", path) for path in given or ())
        published = self.parts.adapters if self.parts is not None else {}
        return [
            *(self.stored.adapters if self.stored is not None else ()),
            # Adapters published with a model apply only to requests that name them.
            *(AdapterFile(str(path), name, 0.0) for name, path in published.items()),
            *(AdapterFile(str(path), name) for name, path in named),
        ]


def _find(model: str | Path, progress: Callable[[int, int], None] | None = None) -> _Source:
    """Find a model by its path or its name; convert it if it is a folder."""
    if isinstance(model, Path) or model.endswith(".gguf") or model.startswith(_PATHS):
        path = path_of(str(model))
        if not path.is_dir():
            return _Source(path)
        from puna.convert import converted

        parts = converted(path, lambda _, done, total: progress(done, total) if progress else None)
        return _Source(parts.model, parts=parts)
    store = Store()
    try:
        stored = store.get(model)
    except ModelNotFoundError as error:
        folder = f"; for the folder of that name, puna.load('./{model}')" if Path(model).is_dir() else ""
        raise ModelNotFoundError(f"{error}{did_you_mean(model, store.names())}{folder}") from None
    return _Source(stored.runnable_path(), stored)
