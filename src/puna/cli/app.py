"""The commands and their options. What they do is imported when they run, so that help comes at once."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from puna import __version__
from puna.cli.help import PunaCommand, PunaGroup, RunCommand
from puna.errors import RequestError

app = typer.Typer(
    name="puna",
    cls=PunaGroup,
    help="Run open language models on your own machine.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def complete_model(incomplete: str) -> list[str]:
    """Names of models for the shell; nothing when no server runs."""
    from puna.cli.client import Client
    from puna.errors import PunaError

    with Client() as client:
        try:
            models = client.get("/api/tags").get("models") or []
        except PunaError:
            return []
    names = [model["name"].removesuffix(":latest") for model in models]
    return [name for name in names if name.startswith(incomplete)]


Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="Name of a model.", autocompletion=complete_model)
]
ModelOrFile = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="Name of a model, or path of a GGUF file.", autocompletion=complete_model
    ),
]
Prefix = Annotated[str, typer.Argument(metavar="[PREFIX]", help="Only names that begin so.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        _version()
        raise typer.Exit


def _version() -> None:
    from puna.cli.manage import print_version

    print_version(__version__)


@app.callback(invoke_without_command=True)
def _main(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option("-v", "--version", help="Print the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@app.command(cls=RunCommand, context_settings={"allow_interspersed_args": True})
def run(
    model: ModelOrFile,
    prompt: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PROMPT...]", help="What to say. Without it, and on a terminal: talk."),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print timings after the answer.")] = False,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Instructions in place of the model's own.")
    ] = None,
    format: Annotated[
        str | None, typer.Option(metavar="json|SCHEMA", help="Answer in JSON, or by a JSON schema.")
    ] = None,
    think: Annotated[
        str | None,
        typer.Option(
            metavar="[=LEVEL]",
            help="Think first: true, false, high, medium, low or max (after '='); plain: true.",
        ),
    ] = None,
    hidethinking: Annotated[bool, typer.Option("--hidethinking", help="Do not show the thinking.")] = False,
    keepalive: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="How long the model stays in memory: 5m, 1h, -1m (for ever)."),
    ] = None,
    nowordwrap: Annotated[
        bool, typer.Option("--nowordwrap", help="Do not wrap words at the right edge.")
    ] = False,
    temperature: Annotated[
        float | None, typer.Option(metavar="N", help="Creativity; 0 takes the likeliest token.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(metavar="K", help="Pick from the K likeliest tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(metavar="P", help="Pick from the likeliest tokens that sum to P.")
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Random number seed.")] = None,
    num_predict: Annotated[int | None, typer.Option(metavar="N", help="Most tokens to answer with.")] = None,
    num_ctx: Annotated[int | None, typer.Option(metavar="N", help="Context length in tokens.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Text that ends the answer; may be repeated.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("-o", "--option", metavar="NAME=VALUE", help="Any other option; may be repeated."),
    ] = None,
    truncate: Annotated[
        bool, typer.Option("--truncate/--no-truncate", help="Embedding models: cut a text that is too long.")
    ] = True,
    dimensions: Annotated[
        int | None, typer.Option(metavar="N", help="Embedding models: give the first N values only.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", hidden=True)] = False,
) -> None:
    """Ask a model, or talk with it."""
    from puna.cli.run import run_command
    from puna.cli.settings import RunSettings, parse_format, parse_keep_alive, parse_option, parse_think
    from puna.options import Options

    options = dict(parse_option(text) for text in option or ())
    given = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
        "num_predict": num_predict,
        "num_ctx": num_ctx,
        "stop": stop or None,
    }
    options |= {name: value for name, value in given.items() if value is not None}
    Options.merge(options)  # what is out of range is said before anything is started
    settings = RunSettings(
        model=model,
        options=options,
        system=system,
        format=None if format is None else parse_format(format),
        think=None if think is None else parse_think(think),
        keep_alive=None if keepalive is None else parse_keep_alive(keepalive),
        hide_thinking=hidethinking,
        word_wrap=not nowordwrap,
        verbose=verbose,
        truncate=truncate,
        dimensions=dimensions,
    )
    run_command(settings, prompt or [])


@app.command(cls=PunaCommand)
def serve() -> None:
    """Start the server."""
    from puna.server import serve as run_server

    raise typer.Exit(run_server())


app.command("start", cls=PunaCommand, hidden=True)(serve)


@app.command(cls=PunaCommand)
def create(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name of the new model.")],
    file: Annotated[
        str | None,
        typer.Option("-f", "--file", metavar="PATH", help="The Modelfile, '-' for standard input."),
    ] = None,
    quantize: Annotated[
        str | None, typer.Option("-q", "--quantize", metavar="TYPE", help="Quantize to this type.")
    ] = None,
) -> None:
    """Create a model from a Modelfile."""
    from puna.cli.create import create as create_model

    create_model(model, file, quantize)


@app.command(cls=PunaCommand)
def show(
    model: Model,
    license: Annotated[bool, typer.Option("--license", help="Only the license.")] = False,
    modelfile: Annotated[bool, typer.Option("--modelfile", help="Only the Modelfile.")] = False,
    parameters: Annotated[bool, typer.Option("--parameters", help="Only the parameters.")] = False,
    template: Annotated[bool, typer.Option("--template", help="Only the template.")] = False,
    system: Annotated[bool, typer.Option("--system", help="Only the system message.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Also all metadata and tensors.")] = False,
) -> None:
    """Show what a model is."""
    from puna.cli.manage import show_model

    chosen = {
        "license": license,
        "modelfile": modelfile,
        "parameters": parameters,
        "template": template,
        "system": system,
    }
    fields = [field for field, wanted in chosen.items() if wanted]
    if len(fields) > 1:
        raise RequestError(
            "only one of '--license', '--modelfile', '--parameters', '--system', or '--template' "
            "can be specified"
        )
    show_model(model, fields[0] if fields else None, verbose)


@app.command("list", cls=PunaCommand)
def list_models(prefix: Prefix = "") -> None:
    """List the models on this machine."""
    from puna.cli.manage import list_models as print_models

    print_models(prefix)


app.command("ls", cls=PunaCommand, hidden=True)(list_models)


@app.command(cls=PunaCommand)
def ps(prefix: Prefix = "") -> None:
    """List the models in memory."""
    from puna.cli.manage import list_running

    list_running(prefix)


@app.command(cls=PunaCommand)
def stop(model: Model) -> None:
    """Take a model out of memory."""
    from puna.cli.manage import stop_model

    stop_model(model)


@app.command(cls=PunaCommand)
def cp(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="Name of a model.", autocompletion=complete_model)
    ],
    destination: Annotated[str, typer.Argument(metavar="DESTINATION", help="Its new name.")],
) -> None:
    """Copy a model to another name."""
    from puna.cli.manage import copy_model

    copy_model(source, destination)


@app.command(cls=PunaCommand)
def rm(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="Names of models.", autocompletion=complete_model),
    ],
) -> None:
    """Remove models."""
    from puna.cli.manage import remove_models

    remove_models(models)


@app.command(cls=PunaCommand)
def tokenize(
    model: ModelOrFile,
    text: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT...]", help="Without it: standard input.")
    ] = None,
    jsonl: Annotated[
        bool,
        typer.Option("--jsonl", help='Read lines {"text": ...} and answer each with {"ids": [...]}.'),
    ] = False,
    add_special: Annotated[
        bool,
        typer.Option(
            "--add-special/--no-add-special", help="Add what the model puts around texts (BOS, EOS, CLS)."
        ),
    ] = True,
    parse_special: Annotated[
        bool,
        typer.Option(
            "--parse-special/--no-parse-special",
            help="Take text like <|im_end|> for the control token it names.",
        ),
    ] = True,
) -> None:
    """Print the tokens of a text, without a server."""
    from puna.cli.tokenize import tokenize as print_tokens

    print_tokens(model, text, jsonl=jsonl, add_special=add_special, parse_special=parse_special)


@app.command(cls=PunaCommand)
def bench(
    model: ModelOrFile,
    prompt: Annotated[
        int, typer.Option(metavar="N", help="Tokens of the prompt to read; 0: none.", min=0)
    ] = 512,
    generate: Annotated[int, typer.Option(metavar="N", help="Tokens to generate; 0: none.", min=0)] = 64,
    parallel: Annotated[
        str, typer.Option(metavar="N[,N...]", help="How many streams at once; speeds are their total.")
    ] = "1",
    threads: Annotated[
        int, typer.Option(metavar="N", help="Threads to compute with; 0 means all cores.", min=0)
    ] = 0,
    repetitions: Annotated[int, typer.Option(metavar="N", help="How often to measure.", min=1)] = 5,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure prompt and decode speed, without a server."""
    from puna.cli.bench import bench as run_bench
    from puna.cli.bench import parse_counts

    run_bench(model, prompt, generate, parse_counts(parallel), threads, repetitions, as_json=json)


class Inside(StrEnum):
    """What `puna debug` can show."""

    CACHE = "cache"
    MEMORY = "memory"


@app.command(cls=PunaCommand)
def debug(
    what: Annotated[
        Inside,
        typer.Argument(
            metavar="WHAT",
            help="`cache`: who holds which of its cells. `memory`: what a model would take of it.",
        ),
    ],
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]", help="Without it: all models in memory.", autocompletion=complete_model
        ),
    ] = None,
    num_ctx: Annotated[
        int | None, typer.Option(metavar="N", help="With `memory`: tokens of context.", min=1)
    ] = None,
    parallel: Annotated[
        int | None, typer.Option(metavar="N", help="With `memory`: requests at once.", min=1)
    ] = None,
) -> None:
    """Look inside a running server, or at what a model needs.

    The picture of a cache shows for each cell who holds it (A, B, ...; '*': several; '.': nobody) and, below,
    the position it is of. Rows that merely go on as the one before are left out.
    """
    if what is Inside.MEMORY:
        from puna.cli.memory import print_memory

        print_memory(model, num_ctx, parallel)
        return
    from puna.cli.debug import print_caches

    print_caches(model)


@app.command(cls=PunaCommand)
def version() -> None:
    """Print the version."""
    _version()


@app.command("help", cls=PunaCommand, hidden=True)
def show_help(
    ctx: typer.Context, command: Annotated[str | None, typer.Argument(metavar="[COMMAND]")] = None
) -> None:
    """Help about a command."""
    main = ctx.find_root()
    if command is None:
        typer.echo(main.get_help())
        return
    raise typer.Exit(main.command.main([command, "--help"], prog_name="puna", standalone_mode=False) or 0)
