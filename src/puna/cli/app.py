"""The commands and their options. Implementations are imported on use, so `--help` is instant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from puna.cli import arguments as take
from puna.cli import cluster_app, engine_app, key_app, terminal
from puna.cli.completion import Shell
from puna.cli.help import VARIABLES, PunaCommand, PunaGroup, RunCommand
from puna.config import env_bool, unknown_variables
from puna.errors import RequestError, UnavailableError
from puna.hosts import chosen_host

app = typer.Typer(
    name="puna",
    cls=PunaGroup,
    help="Run open language models on your own machine.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.add_typer(key_app.app, name="key")
app.add_typer(cluster_app.app, name="cluster")


def _print_version(wanted: bool) -> None:
    if wanted:
        from puna.cli.version import print_version

        print_version(as_json=False)
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _main(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "-v",
            "--version",
            help="Print the versions of Puna and its parts.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    if ctx.invoked_subcommand != "doctor":  # reports them itself
        for sentence in unknown_variables(VARIABLES):
            terminal.warn(sentence)
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@app.command(cls=RunCommand, context_settings={"allow_interspersed_args": True})
def run(
    model: take.ModelOrFile,
    prompt: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PROMPT...]", help="The prompt; without one, start a chat (on a terminal)."),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print timings after the answer.")] = False,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="System message to use instead of the model's own.")
    ] = None,
    format: Annotated[
        str | None, typer.Option(metavar="json|SCHEMA", help="Answer in JSON, or by a JSON schema.")
    ] = None,
    think: take.Think = None,
    think_budget: Annotated[
        int | None, typer.Option(metavar="N", help="Think for at most N tokens, then answer.", min=0)
    ] = None,
    hidethinking: Annotated[bool, typer.Option("--hidethinking", help="Hide the model's thinking.")] = False,
    keepalive: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="How long to keep the model in memory: 5m, 1h, -1m (forever)."),
    ] = None,
    nowordwrap: Annotated[
        bool, typer.Option("--nowordwrap", help="Do not wrap long lines at words.")
    ] = False,
    temperature: Annotated[
        float | None, typer.Option(metavar="N", help="Randomness; 0 always picks the most likely token.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(metavar="K", help="Sample from the K most likely tokens.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(metavar="P", help="Sample from the most likely tokens with total probability P."),
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Random number seed.")] = None,
    num_predict: Annotated[
        int | None, typer.Option(metavar="N", help="Maximum number of tokens to generate.")
    ] = None,
    num_ctx: Annotated[int | None, typer.Option(metavar="N", help="Context length in tokens.")] = None,
    replicas: Annotated[
        str | None,
        typer.Option(metavar="N[,N]", help="In a cluster: how many replicas, or at least and at most."),
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Stop at this text (repeatable).")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("-o", "--option", metavar="NAME=VALUE", help="Set any other option (repeatable)."),
    ] = None,
    truncate: Annotated[
        bool,
        typer.Option(
            "--truncate/--no-truncate", help="Embedding models: truncate text that exceeds the context."
        ),
    ] = True,
    dimensions: Annotated[
        int | None, typer.Option(metavar="N", help="Embedding models: return only the first N values.")
    ] = None,
    insecure: take.Insecure = False,
    mcp: Annotated[
        list[str] | None,
        typer.Option(metavar="SERVER", help="Offer the tools of this MCP server (repeatable)."),
    ] = None,
    mcp_allow: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Call TOOL, SERVER/TOOL or SERVER/* without asking (repeatable)."),
    ] = None,
) -> None:
    """Ask a model a question, or chat with it."""
    # Typer reads the command line from the signature, so each option is a parameter, and `run` is long.
    from puna.cli.run import run_command
    from puna.cli.settings import RunSettings, merge_options, parse_format, parse_keep_alive, parse_think

    named = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
        "num_predict": num_predict,
        "num_ctx": num_ctx,
        "replicas": replicas,
        "stop": stop or None,
    }
    settings = RunSettings(
        model=model,
        options=merge_options(option or (), named),
        system=system,
        format=None if format is None else parse_format(format),
        think=None if think is None else parse_think(think),
        think_budget=think_budget,
        keep_alive=None if keepalive is None else parse_keep_alive(keepalive),
        hide_thinking=hidethinking,
        word_wrap=not nowordwrap,
        verbose=verbose,
        truncate=truncate,
        dimensions=dimensions,
        insecure=insecure,
        mcp=mcp or (),
        mcp_allow=mcp_allow or (),
    )
    run_command(settings, prompt or [])


@app.command(cls=PunaCommand)
def transcribe(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Audio files: WAV, FLAC, OGG or MP3.")
    ],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Model name or path (default: the newest that transcribes).",
            autocompletion=take.complete_model,
        ),
    ] = None,
    language: Annotated[
        str,
        typer.Option(metavar="NAME", help="Language that is spoken: en, german, ... (default: detect it)."),
    ] = "",
    translate: Annotated[
        bool, typer.Option("--translate", help="Write English, whatever is spoken.")
    ] = False,
    prompt: Annotated[
        str, typer.Option(metavar="TEXT", help="Text that could come before, for names and style.")
    ] = "",
    srt: Annotated[bool, typer.Option("--srt", help="Write subtitles (SubRip).")] = False,
    vtt: Annotated[bool, typer.Option("--vtt", help="Write subtitles (WebVTT).")] = False,
    json: Annotated[bool, typer.Option("--json", help="Write JSON, with times and probabilities.")] = False,
    words: Annotated[bool, typer.Option("--words", help="Write times of words, too (with --json).")] = False,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to write to, a file for each (default: print)."),
    ] = None,
    force: take.Force = False,
) -> None:
    """Write down what is said in audio files."""
    from puna.cli.transcribe import OutputFormat, TranscribeSettings
    from puna.cli.transcribe import transcribe as transcribe_files

    if srt + vtt + json > 1:
        raise RequestError("only one of --srt, --vtt and --json can be specified")
    if words and not json:
        raise RequestError("--words needs --json")
    chosen = {OutputFormat.SRT: srt, OutputFormat.VTT: vtt, OutputFormat.JSON: json}
    format = next((each for each, wanted in chosen.items() if wanted), OutputFormat.TEXT)
    transcribe_files(
        files,
        TranscribeSettings(
            model, language, translate, prompt, format, words=words, output=output, force=force
        ),
    )


@app.command(cls=PunaCommand)
def launch(
    agent: take.AgentName = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ARGUMENT...]", help="Arguments for the agent."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Model to use (default: the newest that suits the agent).",
            autocompletion=take.complete_model,
        ),
    ] = None,
    show: Annotated[
        bool,
        typer.Option(
            "--print", help="Only print the files, variables and command; change and start nothing."
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("-y", "--yes", help="Change the agent's settings without asking.")
    ] = False,
) -> None:
    """Start a coding agent with a model of this machine, or list the agents."""
    from puna.cli.launch.launch import launch as start_agent
    from puna.cli.launch.launch import print_agents

    if agent is None:
        print_agents()
    else:
        start_agent(agent, model, arguments or (), prints=show, yes=yes)


@app.command(cls=PunaCommand)
def serve(
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Address to listen on (default: that of PUNA_HOST).")
    ] = None,
    port: Annotated[
        int | None, typer.Option(metavar="N", help="Port to listen on (default 11434).", min=0, max=65535)
    ] = None,
    tls_cert: Annotated[
        str, typer.Option(metavar="FILE", help="Serve HTTPS with this certificate chain (PEM).")
    ] = "",
    tls_key: Annotated[str, typer.Option(metavar="FILE", help="Private key of the certificate (PEM).")] = "",
    root_path: Annotated[
        str, typer.Option(metavar="PATH", help="Serve below this path, as a reverse proxy shows it (/puna).")
    ] = "",
    mcp: Annotated[bool, typer.Option("--mcp", help="Let the page call tools of MCP servers.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the running server and its models.")] = False,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Run models on the nodes of a cluster, as its head.")
    ] = False,
    join: Annotated[
        str, typer.Option(metavar="HEAD[:PORT]", help="With --cluster: give this machine to that head.")
    ] = "",
    cluster_host: Annotated[
        str, typer.Option(metavar="ADDRESS[:PORT]", help="Address of this machine for other nodes.")
    ] = "",
    ray: Annotated[
        str, typer.Option(metavar="ADDRESS", help="With --cluster: use the Ray cluster there (or 'auto').")
    ] = "",
    split: Annotated[
        str,
        typer.Option(metavar="auto|off|LAYERS", help="With --cluster: divide models over nodes, as 20,12."),
    ] = "",
) -> None:
    """Start the server, or stop it."""
    address = chosen_host(host, port)
    if stop:
        from puna.cli.server_process import stop_server

        stop_server(address)
        return
    settings = None
    if not (cluster or env_bool("CLUSTER")):
        if join or cluster_host or ray or split:
            raise RequestError("--join, --cluster-host, --ray and --split need --cluster")
    else:
        from puna.cluster.settings import ClusterSettings

        settings = ClusterSettings.from_env(host=cluster_host, join=join, ray=ray, split=split)
        if settings.join:
            from puna.cluster.ray_node import work

            raise typer.Exit(work(settings))
    from puna.server import serve as run_server

    raise typer.Exit(
        run_server(
            address, tls_cert=tls_cert, tls_key=tls_key, root_path=root_path, mcp=mcp, cluster=settings
        )
    )


app.command("start", cls=PunaCommand, hidden=True)(serve)


@app.command("open", cls=PunaCommand)
def open_page(
    print_only: Annotated[bool, typer.Option("--print", help="Only print the page's address.")] = False,
) -> None:
    """Open the server's page in the browser."""
    from puna.cli.page import open_page as open_in_browser

    open_in_browser(print_only=print_only)


@app.command(cls=PunaCommand)
def create(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name of the new model.")],
    file: Annotated[
        str | None,
        typer.Option("-f", "--file", metavar="PATH", help="Path of the Modelfile; '-' for standard input."),
    ] = None,
    quantize: Annotated[
        str | None,
        typer.Option("-q", "--quantize", metavar="TYPE", help="Quantize to this type, such as Q4_K_M."),
    ] = None,
) -> None:
    """Create a model from a Modelfile."""
    from puna.cli.create import create as create_model

    create_model(model, file, quantize)


@app.command(cls=PunaCommand)
def pull(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Model name, such as llama3.2 or llama3.2:1b.")
    ],
    insecure: take.Insecure = False,
) -> None:
    """Download a model from a registry."""
    from puna.cli.transfers import pull as pull_from_registry

    pull_from_registry(model, insecure=insecure)


@app.command(cls=PunaCommand)
def push(model: take.Model, insecure: take.Insecure = False) -> None:
    """Upload a model to the registry in its name."""
    from puna.cli.transfers import push as push_to_registry

    push_to_registry(model, insecure=insecure)


@app.command(cls=PunaCommand)
def show(
    model: take.Model,
    license: Annotated[bool, typer.Option("--license", help="Show only the license.")] = False,
    modelfile: Annotated[bool, typer.Option("--modelfile", help="Show only the Modelfile.")] = False,
    parameters: Annotated[bool, typer.Option("--parameters", help="Show only the parameters.")] = False,
    template: Annotated[bool, typer.Option("--template", help="Show only the template.")] = False,
    system: Annotated[bool, typer.Option("--system", help="Show only the system message.")] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Also show all metadata and tensors.")
    ] = False,
    json: take.Json = False,
) -> None:
    """Show details of a model."""
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
    if json and fields:
        raise RequestError(f"--json prints everything; omit --{fields[0]}")
    show_model(model, fields[0] if fields else None, verbose, as_json=json)


@app.command("list", cls=PunaCommand)
def list_models(prefix: take.Prefix = "", json: take.Json = False) -> None:
    """List the models on this machine."""
    from puna.cli.manage import list_models as print_models

    print_models(prefix, as_json=json)


app.command("ls", cls=PunaCommand, hidden=True)(list_models)


@app.command(cls=PunaCommand)
def ps(prefix: take.Prefix = "", json: take.Json = False) -> None:
    """List the models loaded in memory."""
    from puna.cli.manage import list_running

    list_running(prefix, as_json=json)


@app.command(cls=PunaCommand)
def stop(
    model: take.OptionalModel = None,
    everything: Annotated[bool, typer.Option("--all", help="Unload all models.")] = False,
) -> None:
    """Unload one model, or all models, from memory."""
    from puna.cli.manage import stop_all, stop_model

    if everything == (model is not None):
        raise RequestError("which model? Usage: puna stop MODEL, or puna stop --all")
    if model is None:
        stop_all()
    else:
        stop_model(model)


@app.command(cls=PunaCommand)
def cp(
    source: take.Source,
    destination: Annotated[str, typer.Argument(metavar="DESTINATION", help="Name of the copy.")],
) -> None:
    """Copy a model."""
    from puna.cli.manage import copy_model

    copy_model(source, destination)


@app.command(cls=PunaCommand)
def rm(
    models: take.Models,
) -> None:
    """Remove models."""
    from puna.cli.manage import remove_models

    remove_models(models)


@app.command("mcp", cls=PunaCommand)
def serve_mcp() -> None:
    """Serve the models as tools of an MCP server, on standard input and output."""
    try:
        from puna.cli.mcp_serving import serve_mcp as serve_tools
    except ImportError as error:
        raise UnavailableError(
            f"puna mcp needs the package mcp ({error}); install it with: pip install 'puna[mcp]'"
        ) from None
    serve_tools()


app.add_typer(engine_app.app)


@app.command(cls=PunaCommand)
def version(json: take.Json = False) -> None:
    """Print the versions of Puna and its parts."""
    from puna.cli.version import print_version

    print_version(as_json=json)


@app.command(cls=PunaCommand)
def upgrade(
    check: Annotated[
        bool, typer.Option("--check", help="Ask the package index whether there is a newer version.")
    ] = False,
    index: Annotated[
        str,
        typer.Option(metavar="URL", help="Package index to ask (default: that of pip's settings)."),
    ] = "",
    json: take.Json = False,
) -> None:
    """Say how to upgrade this installation."""
    from puna.cli.upgrade import upgrade as print_upgrade

    print_upgrade(check=check or bool(index), index=index, as_json=json)


@app.command(cls=PunaCommand)
def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print a shell script that completes commands and model names."""
    from puna.cli.completion import script

    print(script(shell))


@app.command("help", cls=PunaCommand, hidden=True)
def show_help(
    ctx: typer.Context, command: Annotated[str | None, typer.Argument(metavar="[COMMAND]")] = None
) -> None:
    """Show the help of a command."""
    main = ctx.find_root()
    if command is None:
        typer.echo(main.get_help())
        return
    raise typer.Exit(main.command.main([command, "--help"], prog_name="puna", standalone_mode=False) or 0)
