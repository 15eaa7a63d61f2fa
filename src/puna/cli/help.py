"""Layout of the help pages, and their examples and environment variables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

#: Effects of the environment variables. `PUNA_X` may also be written `OLLAMA_X`, except PUNA_HOME.
VARIABLES = {
    "PUNA_HOST": "Address of the server (default 127.0.0.1:11434)",
    "PUNA_MODELS": "Folder of the models (default ~/.ollama/models)",
    "PUNA_HOME": "Folder of chats, keys and logs (default ~/.puna)",
    "PUNA_NUM_THREADS": "Number of threads (default: the number of physical cores)",
    "PUNA_NUMA": "Whether to spread models and threads over several memory nodes (default 0)",
    "PUNA_CONTEXT_LENGTH": "Context length in tokens, unless the request or model sets it (default 4096)",
    "PUNA_KEEP_ALIVE": "How long models stay in memory after their last use (default 5m)",
    "PUNA_NUM_PARALLEL": "Maximum number of requests in a model's batch (default 4, or 1 if memory is short)",
    "PUNA_MAX_LOADED_MODELS": "Maximum number of models in memory (default 3)",
    "PUNA_MAX_QUEUE": "Maximum number of waiting requests (default 512)",
    "PUNA_MAX_BODY_MB": "Maximum size of a request in megabytes, model files excepted (default 64)",
    "PUNA_MAX_IMAGES": "Maximum number of images in a request (default 64)",
    "PUNA_MAX_RECORDINGS": "Maximum number of recordings in a request (default 16)",
    "PUNA_MAX_IMAGE_MB": "Maximum size of an image file in megabytes (default 20)",
    "PUNA_MAX_IMAGE_MEGAPIXELS": "Maximum size of an image in megapixels (default 40)",
    "PUNA_MAX_AUDIO_MB": "Maximum size of an audio file in megabytes (default 128)",
    "PUNA_MAX_AUDIO_MINUTES": "Maximum length of an audio file in minutes (default 120, the most)",
    "PUNA_RESPONSES_MB": "Megabytes each of responses, conversations and batches (default 256; 0 keeps none)",
    "PUNA_HISTORY": "File of the chats that the page keeps (default history.db in PUNA_HOME; off: none)",
    "PUNA_HISTORY_MB": "Maximum size of that file in megabytes (default 4096)",
    "PUNA_PAGE": "Folder of the built page, or `off` to serve none (default: the one that Puna has)",
    "PUNA_ROOT_PATH": "Path below which a reverse proxy shows the server, such as /puna (default none)",
    "PUNA_REMOTE_IMAGES": "`1` lets requests name images by public web addresses (default 0)",
    "PUNA_LOAD_TIMEOUT": "How long loading a model may make no progress (default 5m)",
    "PUNA_CREATE_TIMEOUT": "How long converting a model may make no progress (default 5m)",
    "PUNA_STEP_TIMEOUT": "How long a step may take before its model is considered hung (default 10m)",
    "PUNA_PING_INTERVAL": "How long a stream may be silent before a sign of life (default 10s; 0: forever)",
    "PUNA_LOG_FILE": "Log to this file, rotated at 10 MiB (default: standard error)",
    "PUNA_LOG_FORMAT": "Format of the log: text, or json for one object per line (default text)",
    "PUNA_KV_CACHE_TYPE": "Type of cached keys and values: f16, q8_0, q4_0, bf16 or f32 (default f16)",
    "PUNA_PROMPT_CACHE": "Folder to save evaluated prompts in; `1` for ~/.puna/prompts (default: none)",
    "PUNA_PROMPT_CACHE_GB": "Maximum size of that folder in gigabytes (default 10)",
    "PUNA_ADAPTERS_TEXT_ONLY": "`1` ignores the vision tower's part of adapters (default 0)",
    "PUNA_CLUSTER": "`1` is `puna serve --cluster` (default 0)",
    "PUNA_CLUSTER_HOST": "Address of this machine for the other nodes of its cluster (default 127.0.0.1)",
    "PUNA_CLUSTER_PORT": "Port of the cluster's head (default 6379)",
    "PUNA_CLUSTER_JOIN": "Address of the head to join (default: this machine is one)",
    "PUNA_CLUSTER_RAY": "Address of a Ray cluster to use, or auto (default: start one)",
    "PUNA_CLUSTER_FOLDER": "Folder of the cluster's token and certificates (default cluster in PUNA_HOME)",
    "PUNA_CLUSTER_TEMP": "Folder for Ray's sockets and logs (default: Ray's own)",
    "PUNA_CLUSTER_MEMORY_MB": "Megabytes of this machine for the cluster's models (default: all)",
    "PUNA_REPLICAS": "Minimum and maximum of a model's replicas, as 1,4 (default: 1 to one on each node)",
    "PUNA_SPLIT": "Models on several nodes: auto (too large for one), off, or layers of each, as 20,12",
    "PUNA_SPLIT_KERNELS": "any: nodes of one model may differ in results' last bits (default: same)",
    "PUNA_API_KEY": "Key that commands send to the server",
    "PUNA_API_KEYS": "Keys that the server accepts, separated by commas",
    "PUNA_API_KEYS_FILE": "File of accepted keys, written by `puna key new` (default ~/.puna/keys.json)",
    "PUNA_TLS_CERT": "Certificate chain (PEM) for serving HTTPS",
    "PUNA_TLS_KEY": "Private key of the certificate (PEM)",
    "PUNA_ALLOWED_HOSTS": "Host names that web pages may use for the server, separated by commas",
    "PUNA_MAX_CONNECTIONS": "Maximum number of connections (default 4096)",
    "PUNA_MAX_CONNECTIONS_PER_ADDRESS": "Maximum number of connections from one remote address (default 256)",
    "PUNA_HEADER_TIMEOUT": "How long the header of a request may take to arrive (default 30s)",
    "PUNA_BODY_TIMEOUT": "How long the body of a request may take to arrive, uploads excepted (default 5m)",
    "PUNA_CLIENT_TIMEOUT": "How long a client may pause sending a body or reading a reply (default 60s)",
    "PUNA_ORIGINS": "Origins of web pages that may use the server, separated by commas",
    "PUNA_PRIVATE_REGISTRIES": "Registries in private networks to pull from and push to (`*`: any)",
    "HF_TOKEN": "Token for gated and private models on Hugging Face",
    "HF_ENDPOINT": "Address of the hub (default https://huggingface.co)",
    "PUNA_NOPRUNE": "Keep files that no model uses",
    "PUNA_DEBUG": "Log debugging details",
    "PUNA_SPECULATE": "Default for speculative decoding: off, prompt, draft or mtp",
    "PUNA_ENGINE": "Engine that runs models: puna, llamacpp, or auto: puna if it can (default auto)",
    "PUNA_CPU": "Instruction set of the kernels: avx2, portable, ... (default: the best available)",
    "PUNA_OPS": "Backend: gpu, cpu, or reference, without kernels (default: gpu if possible, else cpu)",
    "PUNA_GPU_DEVICE": "What GPUs are: cuda, or cpu: torch on the processor, to try it (default cuda)",
    "PUNA_GPU_TUNE": "0: do not measure which forms of kernels are the fastest on a GPU (default 1)",
    "PUNA_GPU_MEMORY_GB": "Gigabytes of a GPU that may be in use, or of each: 6 or 6,12 (default: all)",
    "PUNA_TENSOR_PARALLEL": "GPUs that together compute each layer of a model (default 1)",
    "PUNA_REPLAY": "`0` calls each kernel from Python in decode steps, for comparison",
    "PUNA_MCP": "`1` is `puna serve --mcp` (default 0)",
    "PUNA_MCP_CONFIG": "File of MCP servers (default ~/.puna/mcp.json)",
    "PUNA_NOHISTORY": "Do not save the prompts typed in a chat",
    "PUNA_EDITOR": "Editor that Ctrl-G opens in a chat",
    "NO_COLOR": "Disable colours",
}


@dataclass(frozen=True)
class Page:
    """Part of a command's help after the options."""

    examples: Sequence[tuple[str, str]] = ()  # (description, command)
    variables: Sequence[str] = ()


_CLIENT = ("PUNA_HOST", "PUNA_API_KEY")
_COMPUTING = (
    "PUNA_NUM_THREADS",
    "PUNA_NUMA",
    "PUNA_CPU",
    "PUNA_OPS",
    "PUNA_GPU_DEVICE",
    "PUNA_GPU_MEMORY_GB",
    "PUNA_TENSOR_PARALLEL",
)
PAGES = {
    "puna": Page(
        examples=(
            ("Ask the bundled model", 'puna run demo "Tell me a story"'),
            ("Chat with it", "puna run demo"),
            ("Run a model file", "puna run ./model.gguf"),
            ("Serve a web page, and clients of the Ollama, OpenAI and Anthropic APIs", "puna serve"),
        ),
        variables=("PUNA_HOST", "PUNA_MODELS", "PUNA_HOME"),
    ),
    "run": Page(
        examples=(
            (
                "Ask one question; the answer is streamed to standard output",
                'puna run demo "Tell me a story about a fox"',
            ),
            ("Ask about a text file", 'puna run llama3.2 "Summarise this text." < notes.txt'),
            ("Ask about a picture", 'puna run demo-vision "What is in this picture? ./photo.png"'),
            ("Chat; /? lists the commands", "puna run demo"),
            (
                "Run the folder of a published model, which is converted the first time",
                "puna run ./SmolLM2-135M-Instruct",
            ),
            ("Run a model file and print timings", 'puna run ./model.gguf --verbose "Hello"'),
            ("Get the same answer every time", 'puna run demo --temperature 0 "What is 2 + 2?"'),
            ("Answer in JSON", 'puna run llama3.2 --format json "Three colours, as JSON"'),
            ("Offer the tools of an MCP server", "puna run qwen3 --mcp files --mcp-allow read_file"),
        ),
        variables=(*_CLIENT, "PUNA_HOME", "PUNA_MCP_CONFIG", "PUNA_NOHISTORY", "PUNA_EDITOR", "NO_COLOR"),
    ),
    "transcribe": Page(
        examples=(
            ("Print what is said", "puna transcribe talk.mp3"),
            ("Subtitles beside several videos' sound", "puna transcribe --srt --output . one.ogg two.ogg"),
            (
                "With the folder of a published model",
                "puna transcribe --model ./whisper-large-v3-turbo talk.wav",
            ),
            ("In English, whatever is spoken", "puna transcribe --translate interview.flac"),
        ),
        variables=_CLIENT,
    ),
    "launch": Page(
        examples=(
            ("List the agents", "puna launch"),
            ("Start Claude Code with the newest model that suits it", "puna launch claude"),
            ("Start Codex with a certain model", "puna launch codex --model qwen3"),
            ("Pass arguments on", 'puna launch claude -- -p "What does this repository do?"'),
            ("Only show how OpenCode would be started", "puna launch opencode --print"),
        ),
        variables=(*_CLIENT, "PUNA_HOME", "PUNA_CONTEXT_LENGTH"),
    ),
    "serve": Page(
        examples=(
            ("Serve only this machine, on port 11434", "puna serve"),
            ("Serve on all interfaces, port 8080", "puna serve --host 0.0.0.0 --port 8080"),
            ("Serve HTTPS", "puna serve --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem"),
            ("Let the page call tools of the MCP servers in ~/.puna/mcp.json", "puna serve --mcp"),
            ("Be the head of a cluster", "puna serve --cluster --cluster-host 192.0.2.10"),
            (
                "Give this machine to a cluster",
                "puna serve --cluster --join 192.0.2.10 --cluster-host 192.0.2.11",
            ),
            ("Stop the server that runs in the background", "puna serve --stop"),
        ),
        variables=(
            "PUNA_HOST",
            "PUNA_MODELS",
            "PUNA_CONTEXT_LENGTH",
            "PUNA_KEEP_ALIVE",
            "PUNA_NUM_PARALLEL",
            "PUNA_NUM_THREADS",
            "PUNA_MAX_LOADED_MODELS",
            "PUNA_MAX_QUEUE",
            "PUNA_LOAD_TIMEOUT",
            "PUNA_CREATE_TIMEOUT",
            "PUNA_STEP_TIMEOUT",
            "PUNA_PING_INTERVAL",
            "PUNA_LOG_FILE",
            "PUNA_LOG_FORMAT",
            "PUNA_MAX_BODY_MB",
            "PUNA_MAX_IMAGES",
            "PUNA_MAX_RECORDINGS",
            "PUNA_MAX_IMAGE_MB",
            "PUNA_MAX_IMAGE_MEGAPIXELS",
            "PUNA_MAX_AUDIO_MB",
            "PUNA_MAX_AUDIO_MINUTES",
            "PUNA_RESPONSES_MB",
            "PUNA_HISTORY",
            "PUNA_HISTORY_MB",
            "PUNA_PAGE",
            "PUNA_ROOT_PATH",
            "PUNA_REMOTE_IMAGES",
            "PUNA_MCP",
            "PUNA_MCP_CONFIG",
            "PUNA_KV_CACHE_TYPE",
            "PUNA_ADAPTERS_TEXT_ONLY",
            "PUNA_PROMPT_CACHE",
            "PUNA_PROMPT_CACHE_GB",
            "PUNA_API_KEYS",
            "PUNA_API_KEYS_FILE",
            "PUNA_TLS_CERT",
            "PUNA_TLS_KEY",
            "PUNA_ALLOWED_HOSTS",
            "PUNA_MAX_CONNECTIONS",
            "PUNA_MAX_CONNECTIONS_PER_ADDRESS",
            "PUNA_HEADER_TIMEOUT",
            "PUNA_BODY_TIMEOUT",
            "PUNA_CLIENT_TIMEOUT",
            "PUNA_ORIGINS",
            "PUNA_CLUSTER",
            "PUNA_CLUSTER_HOST",
            "PUNA_CLUSTER_PORT",
            "PUNA_CLUSTER_JOIN",
            "PUNA_CLUSTER_RAY",
            "PUNA_CLUSTER_FOLDER",
            "PUNA_CLUSTER_TEMP",
            "PUNA_CLUSTER_MEMORY_MB",
            "PUNA_REPLICAS",
            "PUNA_SPLIT",
            "PUNA_SPLIT_KERNELS",
            "PUNA_PRIVATE_REGISTRIES",
            "HF_TOKEN",
            "HF_ENDPOINT",
            "PUNA_NOPRUNE",
            "PUNA_DEBUG",
            "PUNA_SPECULATE",
            "PUNA_ENGINE",
            "PUNA_CPU",
            "PUNA_OPS",
            "PUNA_GPU_DEVICE",
            "PUNA_GPU_MEMORY_GB",
            "PUNA_GPU_TUNE",
            "PUNA_TENSOR_PARALLEL",
            "PUNA_REPLAY",
        ),
    ),
    "open": Page(
        examples=(
            ("Open the page in the browser", "puna open"),
            ("Only print its address", "puna open --print"),
        ),
        variables=("PUNA_HOST",),
    ),
    "create": Page(
        examples=(
            ("From ./Modelfile", "puna create mario"),
            ("From a GGUF file alone", "echo FROM ./model.gguf | puna create mine -f -"),
            (
                "From another model, with a system message",
                "printf 'FROM demo\\nSYSTEM You are a pirate.\\n' | puna create pirate -f -",
            ),
        ),
        variables=_CLIENT,
    ),
    "pull": Page(
        examples=(
            ("From Ollama's registry", "puna pull llama3.2"),
            ("In a certain size", "puna pull llama3.2:1b"),
            ("From another registry", "puna pull registry.example.com/team/model"),
            ("From Hugging Face", "puna pull hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M"),
            ("From any web server", "puna pull https://example.com/files/model.gguf"),
            (
                "From a registry on this machine, without TLS (start the server with the variable)",
                "PUNA_PRIVATE_REGISTRIES=localhost puna pull --insecure http://localhost:5000/team/model",
            ),
        ),
        variables=(*_CLIENT, "PUNA_PRIVATE_REGISTRIES", "HF_TOKEN", "HF_ENDPOINT"),
    ),
    "push": Page(
        examples=(
            ("To your account at Ollama's registry", "puna cp mine NAME/mine && puna push NAME/mine"),
            ("To another registry", "puna push registry.example.com/team/model"),
            (
                "To a registry on this machine (start the server with the variable)",
                "PUNA_PRIVATE_REGISTRIES=localhost puna push --insecure localhost:5000/team/mine",
            ),
        ),
        variables=(*_CLIENT, "PUNA_PRIVATE_REGISTRIES"),
    ),
    "show": Page(
        examples=(
            ("Architecture, size, context, parameters", "puna show demo"),
            ("All metadata and tensors", "puna show demo --verbose"),
            ("A Modelfile to start from", "puna show demo --modelfile > Modelfile"),
        ),
        variables=_CLIENT,
    ),
    "list": Page(
        examples=(
            ("All models", "puna list"),
            ("Models whose name starts with llama", "puna list llama"),
            ("As JSON", "puna list --json"),
        ),
        variables=_CLIENT,
    ),
    "ps": Page(
        examples=(("Loaded models, and when they unload", "puna ps"), ("As JSON", "puna ps --json")),
        variables=_CLIENT,
    ),
    "stop": Page(
        examples=(
            ("Unload a model now", "puna stop demo"),
            ("Unload all models", "puna stop --all"),
        ),
        variables=_CLIENT,
    ),
    "key": Page(
        examples=(
            ("Make a key; from now on, the server requires one", "puna key new --name me"),
            (
                "For a chat client: read and generate only, at most 60 requests a minute",
                "puna key new --name chat --scope read,generate --rate 60/min --concurrency 4",
            ),
            ("Use a key", "PUNA_API_KEY=puna-... puna list"),
        ),
        variables=("PUNA_API_KEYS_FILE", "PUNA_HOME"),
    ),
    "key new": Page(variables=("PUNA_API_KEYS_FILE", "PUNA_HOME")),
    "key list": Page(variables=("PUNA_API_KEYS_FILE", "PUNA_HOME")),
    "key revoke": Page(variables=("PUNA_API_KEYS_FILE", "PUNA_HOME")),
    "cluster": Page(
        examples=(
            (
                "Make token and certificates for three machines",
                "puna cluster init 192.0.2.10 192.0.2.11 192.0.2.12",
            ),
            ("Watch what the nodes do", "puna cluster status --watch"),
            ("Take a node out of service", "puna cluster drain 192.0.2.11"),
        ),
        variables=(*_CLIENT, "PUNA_CLUSTER_FOLDER", "PUNA_HOME"),
    ),
    "cluster init": Page(
        examples=(("For two machines", "puna cluster init 192.0.2.10 192.0.2.11"),),
        variables=("PUNA_CLUSTER_FOLDER", "PUNA_HOME"),
    ),
    "cluster status": Page(examples=(("For programs", "puna cluster status --json"),), variables=_CLIENT),
    "cluster drain": Page(
        examples=(("Give a node work again", "puna cluster drain 192.0.2.11 --undo"),), variables=_CLIENT
    ),
    "mcp": Page(
        examples=(
            (
                "In the configuration of an MCP client",
                '{"mcpServers": {"puna": {"command": "puna", "args": ["mcp"]}}}',
            ),
        ),
        variables=_CLIENT,
    ),
    "cp": Page(examples=(("Give a model a second name", "puna cp llama3.2 mine"),), variables=_CLIENT),
    "rm": Page(examples=(("Remove two models", "puna rm mine calm:latest"),), variables=_CLIENT),
    "tokenize": Page(
        examples=(
            ("The token ids of a text", 'puna tokenize demo "Hello, world"'),
            ("A file, without BOS and EOS", "puna tokenize ./model.gguf --no-add-special < text.txt"),
            ("Many texts, one per line", "puna tokenize demo --jsonl < texts.jsonl > ids.jsonl"),
        ),
        variables=("PUNA_MODELS",),
    ),
    "bench": Page(
        examples=(
            ("Prompt and decode speed", "puna bench demo"),
            (
                "One stream and eight, as JSON",
                "puna bench ./model.gguf --parallel 1,8 --json",
            ),
        ),
        variables=("PUNA_MODELS", *_COMPUTING),
    ),
    "quantize": Page(
        examples=(
            ("A quarter of the size", "puna quantize model-f16.gguf model-q4.gguf --type Q4_K_M"),
            (
                "With an importance matrix",
                "puna quantize model-f16.gguf model-q3.gguf --type Q3_K_M --imatrix imatrix.gguf",
            ),
        ),
    ),
    "convert": Page(
        examples=(("A model as published on Hugging Face", "puna convert ./SmolLM2-135M smol.gguf"),)
    ),
    "doctor": Page(
        examples=(
            ("Check this installation", "puna doctor"),
            ("As JSON", "puna doctor --json"),
            ("Check the files of all models", "puna doctor --store"),
            ("Download damaged files again", "puna doctor --store --heal"),
        ),
        variables=("PUNA_HOST", "PUNA_MODELS", *_COMPUTING),
    ),
    "debug": Page(
        examples=(
            ("The caches of all loaded models", "puna debug cache"),
            ("The caches of one model", "puna debug cache demo"),
            ("The memory a model needs", "puna debug memory demo --num-ctx 8192"),
        ),
        variables=_CLIENT,
    ),
    "completion": Page(
        examples=(
            ("bash: add to ~/.bashrc", 'eval "$(puna completion bash)"'),
            ("zsh: add to ~/.zshrc, after compinit", 'eval "$(puna completion zsh)"'),
            ("fish", "puna completion fish > ~/.config/fish/completions/puna.fish"),
        ),
        variables=_CLIENT,
    ),
    "upgrade": Page(
        examples=(
            ("How to upgrade; asks nobody", "puna upgrade"),
            ("Whether there is a newer version", "puna upgrade --check"),
        ),
    ),
    "version": Page(variables=_CLIENT),
}

#: The sections of the main help, with their commands in order.
SECTIONS = {
    "Chat": ("run", "transcribe", "launch"),
    "Models": ("pull", "push", "list", "show", "create", "cp", "rm"),
    "Server": ("serve", "open", "ps", "stop", "key", "mcp", "cluster"),
    "Tools": (
        "doctor",
        "convert",
        "quantize",
        "tokenize",
        "bench",
        "debug",
        "completion",
        "upgrade",
        "version",
    ),
}


class PunaCommand(TyperCommand):
    """A command whose help ends with examples and environment variables."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _write_help(self, ctx, formatter)
        _write_page(_page(ctx), formatter)


class RunCommand(PunaCommand):
    """The `run` command, whose `--think` needs no value and never takes the next word as one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        spelled = ["--think=true" if word == "--think" else word for word in args[:end]]
        return super().parse_args(ctx, spelled + args[end:])


class PunaGroup(TyperGroup):
    """The main command, whose help lists commands in sections, or a command with subcommands."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters without typer's options for completion, which `puna completion` replaces."""
        theirs = ("install_completion", "show_completion")
        return [parameter for parameter in super().get_params(ctx) if parameter.name not in theirs]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _write_usage(self, ctx, formatter)
        sections = SECTIONS if ctx.parent is None else {"Commands": tuple(self.list_commands(ctx))}
        for title, names in sections.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            rows = [(name, command.get_short_help_str(90)) for name, command in commands if command]
            _write_rows(title, rows, formatter)
        _write_options(self, ctx, formatter)
        _write_page(_page(ctx), formatter)
        formatter.write(f"\nRun '{ctx.command_path} COMMAND --help' for the options of a command.\n")


def _write_help(command: Any, ctx: Any, formatter: Any) -> None:
    _write_usage(command, ctx, formatter)
    _write_options(command, ctx, formatter)


def _write_usage(command: Any, ctx: Any, formatter: Any) -> None:
    formatter.write_text(command.help or "")
    formatter.write(f"\n{_heading('Usage')} {usage(ctx)}\n")


def usage(ctx: Any) -> str:
    """Return the usage, such as `puna show [OPTIONS] MODEL`."""
    arguments = [_metavar(parameter) for parameter in _arguments(ctx)]
    if isinstance(ctx.command, PunaGroup):
        arguments = ["COMMAND", "[ARGUMENTS]"]
    return " ".join([ctx.command_path, "[OPTIONS]", *arguments])


def _write_options(command: Any, ctx: Any, formatter: Any) -> None:
    arguments = [(_metavar(parameter), parameter.help or "") for parameter in _arguments(ctx)]
    records = [
        parameter.get_help_record(ctx)
        for parameter in command.get_params(ctx)
        if parameter.param_type_name != "argument"
    ]
    _write_rows("Arguments", arguments, formatter)
    _write_rows("Options", [record for record in records if record], formatter)


def _arguments(ctx: Any) -> list[Any]:
    params = ctx.command.get_params(ctx)
    return [parameter for parameter in params if parameter.param_type_name == "argument"]


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _page(ctx: Any) -> Page:
    """Return the page of a command."""
    return PAGES.get(ctx.command_path.partition(" ")[2] or "puna", Page())


def _write_page(page: Page, formatter: Any) -> None:
    if page.examples:
        formatter.write(f"\n{_heading('Examples')}\n")
        for meaning, command in page.examples:
            formatter.write(f"  {_dim('# ' + meaning)}\n  {command}\n")
    _write_rows("Environment Variables", [(name, VARIABLES[name]) for name in page.variables], formatter)


def _write_rows(title: str, rows: list[tuple[str, str]], formatter: Any) -> None:
    if not rows:
        return
    formatter.write(f"\n{_heading(title)}\n")
    formatter.indent()
    formatter.write_dl(rows, col_max=34)
    formatter.dedent()


def _heading(title: str) -> str:
    return _style(f"{title}:", bold=True)


def _dim(text: str) -> str:
    return _style(text, dim=True)


def _style(text: str, **style: bool) -> str:
    return text if os.environ.get("NO_COLOR") else typer.style(text, **style)
