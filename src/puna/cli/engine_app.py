"""Commands that need no server: `tokenize`, `bench`, `quantize`, `convert`, `doctor` and `debug`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from puna.cli import arguments as take
from puna.cli.help import PunaCommand
from puna.errors import RequestError

app = typer.Typer()


@app.command(cls=PunaCommand)
def tokenize(
    model: take.ModelOrFile,
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT...]", help="Text to tokenize (default: standard input)."),
    ] = None,
    jsonl: Annotated[
        bool,
        typer.Option("--jsonl", help='Read lines of {"text": ...} and print {"ids": [...]} for each.'),
    ] = False,
    add_special: Annotated[
        bool,
        typer.Option(
            "--add-special/--no-add-special",
            help="Add the special tokens the model expects around text (BOS, EOS, CLS).",
        ),
    ] = True,
    parse_special: Annotated[
        bool,
        typer.Option(
            "--parse-special/--no-parse-special",
            help="Treat text such as <|im_end|> as the control token it spells.",
        ),
    ] = True,
    json: take.Json = False,
) -> None:
    """Print the tokens of a text, without a server."""
    from puna.cli.local import tokenize as print_tokens

    if json and jsonl:
        raise RequestError("--jsonl already prints JSON lines; omit --json")
    print_tokens(model, text, jsonl=jsonl, add_special=add_special, parse_special=parse_special, as_json=json)


@app.command(cls=PunaCommand)
def bench(
    model: take.ModelOrFile,
    prompt: Annotated[
        int, typer.Option(metavar="N", help="Prompt length in tokens; 0 skips the prompt test.", min=0)
    ] = 512,
    generate: Annotated[
        int, typer.Option(metavar="N", help="Tokens to generate; 0 skips the decode test.", min=0)
    ] = 64,
    parallel: Annotated[
        str, typer.Option(metavar="N[,N...]", help="Number of parallel streams; speeds are totals.")
    ] = "1",
    threads: Annotated[
        int, typer.Option(metavar="N", help="Number of threads; 0 uses all cores.", min=0)
    ] = 0,
    repetitions: Annotated[int, typer.Option(metavar="N", help="Number of measurements.", min=1)] = 5,
    json: take.Json = False,
) -> None:
    """Measure prompt and decode speed, without a server."""
    from puna.cli.local import bench as run_bench
    from puna.cli.local import parse_counts

    run_bench(model, prompt, generate, parse_counts(parallel), threads, repetitions, as_json=json)


@app.command(cls=PunaCommand)
def quantize(
    source: Annotated[
        Path, typer.Argument(metavar="IN", help="GGUF file to read (any part of a split file).")
    ],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="GGUF file to write.")],
    kind: Annotated[
        str, typer.Option("--type", metavar="TYPE", help="Type to quantize to, such as Q4_K_M or Q8_0.")
    ] = "Q4_K_M",
    imatrix: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Importance matrix, in GGUF or the older format.")
    ] = None,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Requantize tensors that are already quantized, which adds to their error."
        ),
    ] = False,
    force: take.Force = False,
) -> None:
    """Quantize a model file, without a server."""
    from puna.cli.local import quantize as quantize_model

    quantize_model(source, target, kind, imatrix, again=again, force=force)


@app.command(cls=PunaCommand)
def convert(
    source: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of a published model (safetensors files).")
    ],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="GGUF file to write.")],
    kind: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="F32, F16 or BF16 (default: as published).")
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Ignore this unsupported setting of config.json (repeatable)."),
    ] = None,
    target_model: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of the model that an EAGLE-3 head drafts for."),
    ] = None,
    force: take.Force = False,
) -> None:
    """Convert the folder of a published model to a model file, without a server."""
    from puna.cli.local import convert as convert_folder

    convert_folder(source, target, kind, ignore or (), target_model=target_model, force=force)


@app.command(cls=PunaCommand)
def doctor(
    json: take.Json = False,
    store: Annotated[
        bool, typer.Option("--store", help="Read the whole model store and report damaged files.")
    ] = False,
    heal: Annotated[
        bool,
        typer.Option("--heal", help="With --store: download damaged files again, and remove unused ones."),
    ] = False,
    insecure: take.Insecure = False,
) -> None:
    """Show what Puna runs on, what is wrong, and what would make it faster."""
    if store:
        from puna.cli.doctor import doctor_store

        raise typer.Exit(0 if doctor_store(as_json=json, heals=heal, insecure=insecure) else 1)
    if heal or insecure:
        raise RequestError(f"--{'heal' if heal else 'insecure'} requires --store: puna doctor --store --heal")
    from puna.cli.doctor import doctor as examine

    examine(as_json=json)


@app.command(cls=PunaCommand)
def debug(
    what: Annotated[
        take.Topic,
        typer.Argument(
            metavar="WHAT",
            help="`cache`: which sequence uses each cell. `memory`: how much memory a model needs.",
        ),
    ],
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="Model name; without it, `cache` shows all loaded models.",
            autocompletion=take.complete_model,
        ),
    ] = None,
    num_ctx: Annotated[
        int | None, typer.Option(metavar="N", help="With `memory`: context length in tokens.", min=1)
    ] = None,
    parallel: Annotated[
        int | None, typer.Option(metavar="N", help="With `memory`: number of parallel requests.", min=1)
    ] = None,
    json: take.Json = False,
) -> None:
    """Show the caches of a running server, or how much memory a model needs.

    A cache is drawn cell by cell: the first line shows the sequence that uses each cell (A, B, ...; '*' for
    several, '.' for none), and the line below it the position stored there. Rows that only continue the row
    above are omitted.
    """
    if what is take.Topic.MEMORY:
        from puna.cli.local import print_memory

        print_memory(model, num_ctx, parallel, as_json=json)
        return
    from puna.cli.local import print_caches

    print_caches(model, as_json=json)
