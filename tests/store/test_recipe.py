"""Interpreting a Modelfile: typed parameters, files and models."""

from __future__ import annotations

from pathlib import Path

import pytest

from puna.convert.vocabulary import WORLD
from puna.errors import GGUFError, ModelNotFoundError, RequestError
from puna.store.modelfile import parse
from puna.store.recipe import (
    ModelSource,
    adapter_source,
    create_request,
    model_source,
    parameter_values,
    resolve,
)
from tests.store.store_files import minimal_gguf, write_gguf


def test_parameters_are_typed(caplog: pytest.LogCaptureFixture) -> None:
    text = """FROM m
PARAMETER temperature 1
PARAMETER top_k 40
PARAMETER top_k 41
PARAMETER num_ctx -1
PARAMETER use_mmap t
PARAMETER engine llamacpp
PARAMETER tensor_split 3,1
PARAMETER replicas 1,4
PARAMETER stop a
PARAMETER stop "b c"
PARAMETER mirostat 2
"""
    values = parameter_values(parse(text))
    assert values == {
        "temperature": 1.0, "top_k": 41, "num_ctx": -1, "use_mmap": True, "stop": ["a", "b c"],
        "engine": "llamacpp", "tensor_split": "3,1", "replicas": "1,4",
    }  # fmt: skip
    assert isinstance(values["temperature"], float)
    assert [record.getMessage() for record in caplog.records] == ["parameter mirostat is deprecated"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense 1", "unknown parameter 'nonsense'"),
        ("temprature 1", r"""unknown parameter 'temprature' \(did you mean "temperature"\?\)"""),
        ("max_tokens 1", r"""unknown parameter 'max_tokens' \(did you mean "num_predict"\?\)"""),
        ("top_k 1.5", r"invalid int value \[1\.5\]"),
        ("top_k 1_0", r"invalid int value \[1_0\]"),
        ("top_k ٣", r"invalid int value \[٣\]"),
        ("temperature warm", r"invalid float value \[warm\]"),
        ("temperature nan", r"invalid float value \[nan\]"),
        ("use_mmap maybe", r"invalid bool value \[maybe\]"),
    ],
)
def test_invalid_parameter_is_reported(line: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        parameter_values(parse(f"FROM m\nPARAMETER {line}\n"))


def test_create_request_contains_only_fields_the_modelfile_sets() -> None:
    assert create_request(parse("FROM m")) == {}
    text = (
        "FROM m\nSYSTEM first\nSYSTEM last\nTEMPLATE {{ .Prompt }}\nLICENSE a\nLICENSE b\n"
        "MESSAGE user hi\nMESSAGE assistant ho\nPARAMETER seed 1\nRENDERER r\nPARSER p\nREQUIRES v0.14.0\n"
    )
    assert create_request(parse(text)) == {
        "system": "last",
        "template": "{{ .Prompt }}",
        "license": ["a", "b"],
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}],
        "parameters": {"seed": 1},
        "renderer": "r",
        "parser": "p",
        "requires": "0.14.0",
    }
    with pytest.raises(RequestError, match=r"requires must be a valid semver \(e\.g\. 0\.14\.0\)"):
        create_request(parse("FROM m\nREQUIRES latest"))
    with pytest.raises(RequestError, match="DRAFT"):
        create_request(parse("FROM m\nDRAFT x"))


def test_from_names_a_file_a_directory_or_a_model(tmp_path: Path) -> None:
    for name in ("a.gguf", "dir/b.gguf", "dir/c.gguf", "dir/d.bin", "dir/x.json", "empty/readme"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(minimal_gguf())
    write_gguf(tmp_path / "dir/c.gguf", "clip", clip__vision__block_count=2)
    assert resolve("./a.gguf", tmp_path) == ModelSource(files={"a.gguf": tmp_path / "a.gguf"})
    assert resolve(str(tmp_path / "a.gguf"), Path("/")) == ModelSource(files={"a.gguf": tmp_path / "a.gguf"})
    assert resolve("dir", tmp_path) == ModelSource(
        files={"b.gguf": tmp_path / "dir/b.gguf", "c.gguf": tmp_path / "dir/c.gguf"}
    )
    assert resolve("llama3:8b", tmp_path) == ModelSource(model="llama3:8b")
    for missing in ("./nothing", "missing.gguf", "/no/such/file", "~/no-such-file-here"):
        with pytest.raises(ModelNotFoundError, match="does not exist"):
            resolve(missing, tmp_path)
    assert resolve("empty", tmp_path) == ModelSource(model="empty")  # such as `demo` within Puna's sources
    for path, folder in (
        ("./empty", tmp_path),
        (str(tmp_path / "empty"), tmp_path),
        (".", tmp_path / "empty"),
    ):
        with pytest.raises(RequestError, match="no Modelfile or safetensors files found"):
            resolve(path, folder)


def test_first_kind_of_weights_in_a_directory_is_used(tmp_path: Path) -> None:
    names = [
        "model.safetensors", "consolidated.00.safetensors", "pytorch_model-1.bin", "consolidated.00.pth",
        "a.gguf", "other.bin",
    ]  # fmt: skip
    for name in names:
        (tmp_path / name).write_bytes(minimal_gguf())
    for name in names:
        if name in ("pytorch_model-1.bin", "consolidated.00.pth"):
            with pytest.raises(RequestError, match=rf"{name} is a pickle.*as safetensors"):
                resolve(".", tmp_path)
        else:
            assert list(resolve(".", tmp_path).files) == [name]
        (tmp_path / name).unlink()


def test_path_may_start_with_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.gguf").write_bytes(minimal_gguf())
    assert resolve("~/a.gguf", Path("/")).files == {"a.gguf": tmp_path / "a.gguf"}


def test_safetensors_directory_includes_its_configuration(tmp_path: Path) -> None:
    names = [
        "model-1.safetensors", "config.json", "tokenizer.model", "spiece.model", "chat_template.jinja", WORLD,
        "README.md", "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors",
    ]  # fmt: skip
    for name in [*names, "other.safetensors", "notes.txt", "deep/er/x.json", "onnx/model.safetensors"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert sorted(resolve(".", tmp_path).files) == sorted(names)


def test_directory_with_several_models_requires_a_choice(tmp_path: Path) -> None:
    for name in ("b.gguf", "a.gguf"):
        (tmp_path / name).write_bytes(minimal_gguf())
    with pytest.raises(RequestError, match=r"has 2 models \(a\.gguf, b\.gguf\); choose one.*FROM \./a\.gguf"):
        resolve(".", tmp_path)
    (tmp_path / "b.gguf").write_bytes(b"no model")
    with pytest.raises(GGUFError, match=r"b\.gguf: not a GGUF file"):
        resolve(".", tmp_path)


def test_links_leading_out_of_the_directory_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.gguf").write_bytes(b"x")
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir/a.gguf").symlink_to(tmp_path / "secret.gguf")
    with pytest.raises(RequestError, match="insecure path"):
        resolve("dir", tmp_path)


def test_later_from_lines_add_files_and_adapter_lines_may_repeat(tmp_path: Path) -> None:
    for name in ("a.gguf", "p.gguf", "l1.gguf", "l2.gguf"):
        (tmp_path / name).write_bytes(b"x")
    modelfile = parse("FROM ./a.gguf\nFROM ./p.gguf\nADAPTER ./l1.gguf\nADAPTER ./l2.gguf 0.5")
    assert set(model_source(modelfile, tmp_path).files) == {"a.gguf", "p.gguf"}
    adapters = adapter_source(modelfile, tmp_path)
    assert adapters.files == {name: tmp_path / name for name in ("l1.gguf", "l2.gguf")}
    assert adapters.scales == {"l2.gguf": 0.5}
    assert not adapter_source(parse("FROM m"), tmp_path).files
    with pytest.raises(ModelNotFoundError):
        adapter_source(parse("FROM m\nADAPTER nothing"), tmp_path)
    with pytest.raises(RequestError, match=r"another adapter is called l1\.gguf"):
        adapter_source(parse("FROM m\nADAPTER l1.gguf\nADAPTER l1.gguf 2"), tmp_path)
    with pytest.raises(RequestError, match="a FROM after the first must name a file"):
        model_source(parse("FROM m\nFROM n"), tmp_path)


def test_adapter_may_be_a_folder_saved_by_peft(tmp_path: Path) -> None:
    folder = tmp_path / "my style 2"
    folder.mkdir()
    with pytest.raises(RequestError, match=r"has no adapter_config\.json; PEFT saves both"):
        adapter_source(parse("FROM m\nADAPTER my style 2"), tmp_path)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (folder / name).write_bytes(b"x")
    for value, scales in (("my style 2", {}), ("./my style 2 -0.5", {"my style 2": -0.5})):
        adapters = adapter_source(parse(f"FROM m\nADAPTER {value}"), tmp_path)
        assert sorted(adapters.files) == [
            "my style 2/adapter_config.json", "my style 2/adapter_model.safetensors",
        ]  # fmt: skip
        assert adapters.scales == scales


def test_overlong_file_name_is_an_error_quoting_its_beginning(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"^'xxx.* cannot be read: File name too long$"):
        adapter_source(parse(f"FROM m\nADAPTER {'x' * 5000}"), tmp_path)
