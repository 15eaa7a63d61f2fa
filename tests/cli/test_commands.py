"""The commands against a real server."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from puna import __version__
from tests.answering import answering
from tests.cli.endless import endless_server
from tests.cli.shell import Shell, end_process
from tests.fuzz.invented import invented
from tests.model.test_load import rewritten
from tests.ports import free_port
from tests.registry.receiving import Receiving
from tests.registry.registries import Published, Registry, serving
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.e2e

GREEDY = ("--temperature", "0", "--num-predict", "12")


def test_a_server_is_started_once_and_keeps_running(shell: Shell) -> None:
    second = shell.run("list")
    assert second.returncode == 0
    assert "Started a server" not in second.stderr
    assert (shell.home / "logs" / "server.log").read_text().count("Listening on") == 1


def test_version_does_not_warn_about_a_server_of_the_same_version(shell: Shell) -> None:
    done = shell.run("version")
    assert (done.stdout.splitlines()[0], done.stderr) == (f"puna version is {__version__}", "")
    found = json.loads(shell.out("version", "--json"))
    assert found["puna"] == __version__
    rows = [line.rsplit(maxsplit=1) for line in done.stdout.splitlines()[1:]]
    assert found["parts"] == {name.strip(): version for name, version in rows}


def test_the_shell_completes_model_names(shell: Shell) -> None:
    request = {"_PUNA_COMPLETE": "complete_bash", "COMP_WORDS": "puna show ti", "COMP_CWORD": "2"}
    done = shell.run(**request)
    assert done.stdout.split() == ["tiny"], done.stderr


def test_create_reports_progress_on_standard_error(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "Modelfile").write_text(
        'FROM tiny\nSYSTEM """Be\nbrief."""\nPARAMETER temperature 0.25\nPARAMETER stop "a b"\nLICENSE Free\n'
    )
    made = shell.run("create", "brief", cwd=tmp_path)
    assert (made.returncode, made.stdout) == (0, "")
    assert made.stderr.splitlines()[0] == "gathering model components"
    assert made.stderr.splitlines()[-1] == "success"
    assert shell.out("show", "brief", "--system") == "Be\nbrief."
    assert re.findall(r"^(\w+) +(.*)$", shell.out("show", "brief", "--parameters"), re.MULTILINE) == [
        ("stop", '"a b"'),
        ("temperature", "0.25"),
    ]
    assert shell.out("show", "brief", "--license") == "Free\n"
    assert "im_start" in shell.out("show", "brief", "--template")
    modelfile = shell.out("show", "brief", "--modelfile")
    assert "PARAMETER temperature 0.25" in modelfile
    shell.out("create", "brief2", "-f", "-", stdin=modelfile)
    assert shell.out("show", "brief2", "--system") == "Be\nbrief."
    assert shell.out("rm", "brief", "brief2") == "deleted 'brief'\ndeleted 'brief2'\n"


def test_create_from_a_folder_with_a_model_needs_no_modelfile(shell: Shell, tiny_gguf: Path) -> None:
    made = shell.run("create", "fromfolder", cwd=tiny_gguf.parent)
    assert "There is no Modelfile here: creating 'fromfolder' from Tiny Llama.F32.gguf." in made.stderr
    assert made.returncode == 0, made.stderr
    shell.out("rm", "fromfolder")


def test_show_prints_its_sections(shell: Shell) -> None:
    text = shell.out("show", "tiny")
    assert text.startswith("  Model\n    architecture        llama\n")
    assert "    context length      256\n" in text
    assert "  Capabilities\n    completion\n" in text
    verbose = shell.out("show", "tiny", "--verbose")
    assert "llama.attention.head_count_kv" in verbose
    assert re.search(r"blk\.0\.attn_q\.weight +F32 +\[64 64\]", verbose)
    assert re.search(r"tokenizer\.ggml\.tokens +\[.* \.\.\.\+\d+ more\]", verbose)
    shown = json.loads(shell.out("show", "tiny", "--json"))
    assert shown["model_info"]["llama.context_length"] == 256
    assert shell.run("show", "tiny", "--json", "--system").stderr == (
        "Error: --json prints everything; omit --system\n"
    )


def test_list_cp_and_rm_manage_models(shell: Shell) -> None:
    assert shell.out("cp", "tiny", "Copied") == "copied 'tiny' to 'Copied'\n"
    header, *rows = shell.out("ls", "copi").splitlines()
    assert header.split() == ["NAME", "ID", "SIZE", "MODIFIED"]
    assert [row.split()[0] for row in rows] == ["Copied:latest"]
    assert [model["name"] for model in json.loads(shell.out("list", "copi", "--json"))] == ["Copied:latest"]
    assert shell.out("rm", "copied") == "deleted 'copied'\n"
    assert shell.out("list", "copi").splitlines() == ["NAME    ID    SIZE    MODIFIED"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("show", "nix"), "model 'nix' not found"),
        (("show", "tinny"), """model 'tinny' not found (did you mean "tiny"?)"""),
        (("cp", "tinny", "x"), """model "tinny" not found (did you mean "tiny"?)"""),
        (("cp", "nix", "x"), 'model "nix" not found'),
        (("rm", "nix"), "model 'nix' not found"),
        (("stop", "nix"), 'couldn\'t find model "nix" to stop'),
        (("run", "tiny", "hello", "--keepalive", "soon"), "invalid duration"),
        (("create", "q", "-f", "-", "-q", "q4"), "unsupported quantization type 'q4' - supported types are"),
        (("create", "q", "-f", "-"), "no FROM line"),
    ],
)
def test_server_errors_are_printed_verbatim(shell: Shell, arguments: tuple[str, ...], error: str) -> None:
    done = shell.run(*arguments)
    assert done.returncode == 1
    assert done.stderr.removeprefix("pulling manifest\n").startswith("Error: ")
    assert error in done.stderr


def test_a_model_that_cannot_think_answers_with_a_warning(shell: Shell) -> None:
    for option in ("--think", "--think-budget=20"):
        done = shell.run("run", "tiny", "hello", option, *GREEDY)
        assert done.returncode == 0
        assert "does not support thinking" in done.stderr


def test_run_pulls_without_tls_only_with_insecure(shell: Shell) -> None:
    run = ("run", "http://127.0.0.1:9/team/x", "hello")
    assert "insecure protocol http: add --insecure" in shell.run(*run).stderr
    assert "127.0.0.1 is not a public address" in shell.run(*run, "--insecure").stderr


def test_an_answer_streams_to_standard_output(shell: Shell) -> None:
    done = shell.run("run", "tiny", "hello", "world", *GREEDY, "--verbose")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n\n")
    assert len(done.stdout) > 4
    assert re.search(r"^eval count: {11}12 token\(s\)$", done.stderr, re.MULTILINE)
    assert re.search(r"^total duration: {7}\S+s$", done.stderr, re.MULTILINE)
    assert shell.out("run", "tiny", "hello world", *GREEDY) == done.stdout


def test_standard_input_comes_before_the_arguments(shell: Shell) -> None:
    piped = shell.out("run", "tiny", "world", *GREEDY, stdin="hello\n")
    assert piped == shell.out("run", "tiny", "hello\n world", *GREEDY)
    assert piped == shell.out("run", "tiny", *GREEDY, stdin="hello\n world")
    assert piped != shell.out("run", "tiny", "world", *GREEDY)


def test_standard_input_must_be_text(shell: Shell) -> None:
    done = shell.run("run", "tiny", stdin=b"ab\xff")
    assert done.returncode == 1
    assert done.stderr == "Error: standard input is not UTF-8 text (see byte 2)\n"


def test_without_a_prompt_the_model_is_only_loaded(shell: Shell) -> None:
    assert shell.out("run", "tiny", "--keepalive", "-1m") == ""
    header, row = shell.out("ps").splitlines()
    columns = ["NAME", "ID", "SIZE", "PROCESSOR", "ENGINE", "CONTEXT", "MEMORY", "TOKENS/S", "UNTIL"]
    assert header.split() == columns
    assert row.split()[0] == "tiny:latest"
    assert [shell.out("ps", prefix).count("\n") for prefix in ("ti", "TI")] == [2, 1]
    assert "100% CPU     puna      256        " in row
    assert row.endswith("    Forever")
    (model,) = json.loads(shell.out("ps", "--json"))
    assert (model["name"], model["context_length"]) == ("tiny:latest", 256)
    assert model["kernels"]
    assert shell.out("stop", "tiny") == ""
    assert "tiny" not in shell.out("ps")


def test_stop_unloads_all_models(shell: Shell, tiny_gguf: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(tiny_gguf.read_bytes() + b"\0" * 32)
    shell.out("create", "second", "-f", "-", stdin=f"FROM {other}")
    for name in ("tiny", "second"):
        shell.out("run", name, "--keepalive", "-1m")
    assert sorted(shell.out("stop", "--all").splitlines()) == [
        "stopped 'second:latest'",
        "stopped 'tiny:latest'",
    ]
    assert json.loads(shell.out("ps", "--json")) == []
    shell.out("run", "second", "--keepalive", "-1m")
    shell.out("rm", "second")
    assert json.loads(shell.out("ps", "--json")) == [], "a removed model is still loaded"


def test_options_without_effect_are_named(shell: Shell) -> None:
    done = shell.run("run", "tiny", "hello", *GREEDY, "-o", "num_gpu=99")
    assert done.stderr == ('Warning: option "num_gpu" has no effect: models are computed by the processor\n')


def test_non_ascii_answers_and_prompts_survive_an_ascii_terminal(shell: Shell, tmp_path: Path) -> None:
    plain = shell.env | {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONIOENCODING": "ascii",
    }
    shell.out("create", "accent", "-f", "-", stdin="FROM tiny\nSYSTEM Soyez brève.\n")
    for arguments in (("show", "accent", "--system"), ("run", "accent", "été", *GREEDY)):
        done = subprocess.run(
            [sys.executable, "-m", "puna", *arguments], env=plain, stdin=subprocess.DEVNULL,
            capture_output=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.isascii()
    shell.out("rm", "accent")


def test_background_server_is_stopped_without_a_key_as_its_start_message_says(tmp_path: Path) -> None:
    fresh = Shell(tmp_path, free_port())
    nobody = fresh.run("serve", "--stop")
    assert (nobody.returncode, nobody.stdout) == (1, "")
    assert nobody.stderr == f"Error: no server is running at http://127.0.0.1:{fresh.port}\n"
    said = fresh.run("list").stderr
    assert "keeps running until you stop it with 'puna serve --stop'" in said
    started = re.search(r"process (\d+)", said)
    assert started is not None
    fresh.out("key", "new")
    assert "requires a key" in fresh.run("list").stderr
    ended = fresh.run("serve", "--stop")
    assert (ended.returncode, ended.stdout) == (0, "")
    assert ended.stderr == f"Stopped the server at http://127.0.0.1:{fresh.port} (process {started[1]}).\n"
    assert "No server is running" in fresh.run("ps").stderr


def test_second_server_at_the_same_address_is_refused(shell: Shell) -> None:
    second = shell.run("serve")
    assert (second.returncode, second.stdout) == (1, "")
    assert second.stderr.splitlines()[-1].startswith(
        f"Error: cannot listen on 127.0.0.1:{shell.port}: the address is already in use; is a server running"
    )


def test_serve_listens_at_the_given_host_and_port(tmp_path: Path) -> None:
    port = free_port()
    with subprocess.Popen(
        [sys.executable, "-m", "puna", "serve", "--host", "localhost", "--port", str(port)],
        env=Shell(tmp_path, 9).env, stdout=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        assert server.stdout is not None
        try:
            assert server.stdout.readline().startswith(f"Listening on 127.0.0.1:{port} ")
        finally:
            server.terminate()


@contextmanager
def foreign_server(status: int) -> Iterator[int]:
    """Yield the port of a web server that is neither Puna nor Ollama."""

    class Page(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(status)
            self.end_headers()

        def do_POST(self) -> None:
            self.send_response(501)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<html>" + b"Unsupported method. " * 100)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with answering(ThreadingHTTPServer(("127.0.0.1", 0), Page)) as server:
        yield server.server_port


@pytest.mark.parametrize("status", [200, 404, 502])
def test_foreign_web_server_is_identified(tmp_path: Path, status: int) -> None:
    with foreign_server(status) as port:
        done = Shell(tmp_path, port).run("run", "tiny", "hello")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        f"Error: the server at http://127.0.0.1:{port} is neither Puna nor Ollama ("
    )
    assert "Unsupported method" not in done.stderr


def test_unreadable_settings_are_warned_about(tmp_path: Path) -> None:
    fresh = Shell(tmp_path, free_port())
    done = fresh.run("list", PUNA_KEEP_ALIVE="abc")
    fresh.run("serve", "--stop")
    assert done.returncode == 0
    assert done.stderr.splitlines()[0] == (
        "Warning: PUNA_KEEP_ALIVE=abc: must be a number of seconds or a duration such as 5m or 1h30m; "
        "using 300 seconds"
    )


def test_truncated_prompt_is_warned_about(shell: Shell) -> None:
    done = shell.run("run", "tiny", "hello " * 200, "--num-ctx", "64", *GREEDY)
    assert done.returncode == 0, done.stderr
    assert "Warning: the conversation did not fit the context" in done.stderr


def test_an_embedding_model_prints_the_vector(shell: Shell, tiny_gguf: Path, tmp_path: Path) -> None:
    made = rewritten(tiny_gguf, tmp_path / "embed.gguf", **{"llama.pooling_type": 1})
    shell.out("create", "embed", "-f", "-", stdin=f"FROM {made}")
    vector = json.loads(shell.out("run", "embed", "hello world"))
    assert len(vector) == 64
    assert sum(value**2 for value in vector) == pytest.approx(1, abs=1e-5)
    assert json.loads(shell.out("run", "embed", stdin="hello world")) == vector
    long = shell.run("run", "embed", "hello " * 200, "--dimensions", "5", "--num-ctx", "64")
    assert len(json.loads(long.stdout)) == 5
    assert "Warning: the text did not fit the context: " in long.stderr
    for arguments, error in (
        (("hello " * 200, "--no-truncate", "--num-ctx", "64"), "exceeds the context length"),
        ((), 'embedding models require input text. Usage: puna run embed "your text here"'),
    ):
        done = shell.run("run", "embed", *arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert error in done.stderr
    shell.out("rm", "embed")


def test_model_file_is_added_as_a_model(shell: Shell, tiny_gguf: Path, tmp_path: Path) -> None:
    first = shell.run("run", str(tiny_gguf), "hello", *GREEDY)
    assert first.returncode == 0, first.stderr
    assert "Added Tiny Llama.F32.gguf as model 'tiny-llama.f32'" in first.stderr
    second = shell.run("run", tiny_gguf.name, "hello", *GREEDY, cwd=tiny_gguf.parent)
    assert "Added" not in second.stderr
    assert second.stdout == first.stdout
    other = tmp_path / tiny_gguf.name  # same name, different content
    shell.out("cp", "tiny-llama.f32", "kept")
    other.write_bytes(tiny_gguf.read_bytes() + b"\0" * 32)
    third = shell.run("run", str(other), "hello", *GREEDY)
    assert third.returncode == 0, third.stderr
    name = re.search(r"as model '(tiny-llama\.f32:[0-9a-f]{12})'", third.stderr)
    assert name is not None, third.stderr
    assert "which uses the file where it is" in third.stderr
    links = [blob for blob in (shell.home / "models" / "blobs").iterdir() if blob.is_symlink()]
    assert [link.resolve() for link in links] == [other]
    other.touch()  # its content may have changed since the link was made
    fourth = shell.run("run", str(other), "hello", *GREEDY)
    assert (fourth.returncode, fourth.stdout) == (0, third.stdout), fourth.stderr
    shell.out("rm", "tiny-llama.f32", "kept", name[1])
    assert not any(link.is_symlink() for link in links)
    assert other.exists()


def test_a_file_that_cannot_be_run_is_not_stored(shell: Shell, tmp_path: Path) -> None:
    odd = invented("llama")
    odd.keys["general.architecture"] = "perceptron"
    known = invented("llama")
    known.keys["tokenizer.ggml.model"] = "abacus"
    before = set((shell.home / "models").rglob("*"))
    for content, complaint in (
        (b"dear diary", "not a GGUF file"),
        (odd.encode(), "architecture 'perceptron' is not supported"),
        (known.encode(), "tokenizer 'abacus' is not supported"),
        (invented("llama").encode()[:-1000], "it is damaged or incomplete"),
    ):
        path = tmp_path / "notes.gguf"
        path.write_bytes(content)
        for arguments in (("run", str(path), "hello"), ("create", "notes", "-f", "-")):
            done = shell.run(*arguments, stdin=f"FROM {path}")
            assert done.returncode == 1
            assert "notes.gguf" in done.stderr
            assert complaint in done.stderr
    assert set((shell.home / "models").rglob("*")) == before


def test_ctrl_c_stops_an_answer_and_is_not_an_error(shell: Shell) -> None:
    with (
        endless_server() as server,
        subprocess.Popen(
            [sys.executable, "-m", "puna", "run", "tiny", "hello"],
            env=Shell(shell.home, server.server_port).env,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        ) as process,
    ):  # fmt: skip
        assert process.stdout is not None
        first = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=PATIENCE_S)
        assert server.abandoned.acquire(timeout=PATIENCE_S), "the server keeps working"
    assert (process.returncode, errors) == (0, b"")
    assert re.fullmatch(rb"(word )+\n\n", first + rest)


def test_a_closed_pipe_prints_no_error(shell: Shell) -> None:
    command = f"'{sys.executable}' -m puna run tiny hello --seed 1 --num-predict 200 | head -c 1"
    done = subprocess.run(
        ["bash", "-c", command],
        env=shell.env,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE_S,
    )
    assert done.stderr == b""


def test_a_server_that_cannot_start_says_why(shell: Shell, tmp_path: Path) -> None:
    broken = Shell(tmp_path, free_port())
    done = broken.run("list", PUNA_LOG_FORMAT="xml")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: the server did not start (exit status 1)\n")
    assert "PUNA_LOG_FORMAT: 'xml'" in done.stderr
    assert str(tmp_path / "logs" / "server.log") in done.stderr


def test_commands_at_the_same_moment_start_one_server(tmp_path: Path) -> None:
    fresh = Shell(tmp_path, free_port())
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda _: fresh.run("list"), range(3)))
    errors = [command.stderr for command in done]
    pids = re.findall(r"process (\d+)", "".join(errors))
    for pid in pids:
        end_process(int(pid))
    assert [command.returncode for command in done] == [0, 0, 0], errors
    assert len(pids) == 1


def documented_commands(program: str, port: str) -> list[list[str]]:
    """Return the commands of docs/cli.md for a local registry, as words, with its only model team/model."""
    text = (Path(__file__).parents[2] / "docs/cli.md").read_text("utf-8")
    lines = re.findall(rf"^puna ({program} .*localhost:5000/\S+)", text, re.MULTILINE)
    return [line.replace("5000", port).replace("team/mine", "team/model").split() for line in lines]


def test_models_are_pushed_to_a_local_registry_and_pulled_as_documented(
    tiny_gguf: Path, tmp_path: Path
) -> None:
    fresh = Shell(tmp_path, free_port())
    private = {"PUNA_PRIVATE_REGISTRIES": "localhost"}  # the documented `export`
    try:
        fresh.out("create", "mine", "-f", "-", stdin=f"FROM {tiny_gguf}")  # starts a server without it
        with serving(Receiving()) as target:
            port = target.address.rpartition(":")[2]
            (copy,), (push,) = (
                documented_commands("cp mine", port),
                documented_commands("push --insecure", port),
            )
            assert fresh.run(*copy).returncode == 0
            refused = fresh.run(*push)
            assert refused.returncode == 1
            assert "PUNA_PRIVATE_REGISTRIES=localhost" in refused.stderr
            assert "'puna serve --stop'" in refused.stderr
            fresh.out("serve", "--stop")
            done = fresh.run(*push, **private)
            assert done.returncode == 0, done.stderr
            assert target.manifests
        with serving(Registry(Published.of(tiny_gguf.read_bytes()))) as source:
            (pull,) = documented_commands("pull --insecure", source.address.rpartition(":")[2])
            done = fresh.run(*pull, **private)
            assert done.returncode == 0, done.stderr
            assert done.stderr.splitlines()[-1] == "success"
    finally:
        fresh.run("serve", "--stop")
