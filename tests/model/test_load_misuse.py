"""`load` of what is no model, on devices that are not there, in types that models cannot have: one sentence each."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.families import fresh

import whence


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small model that loads."""
    folder, made = tmp_path_factory.mktemp("models") / "good", fresh("bert")
    made.model.save_pretrained(folder)
    made.processor.save_pretrained(folder)
    assert whence.load(folder).task == "text-classification"
    return folder


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        call()
    assert "\n" not in str(error.value) and len(str(error.value)) < 600
    return str(error.value)


@pytest.mark.parametrize(
    "name", [None, 3, "", " ", b"x", [], {}, True, 0.5, "a" * 10**5], ids=lambda name: repr(name)[:9]
)
def test_names_that_are_none(name: Any) -> None:
    assert "load takes the name of an embedded model, a folder or a hub id, not" in refusal(lambda: whence.load(name))


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "", -1, [], b"cpu", True], ids=repr)
def test_devices_that_are_not_there(device: Any) -> None:
    assert "cannot be used here" in refusal(lambda: whence.load("planted", device=device))


@pytest.mark.parametrize("dtype", ["float99", "int8", torch.int8, 3, "", "complex64", []], ids=repr)
def test_types_that_models_cannot_have(dtype: Any) -> None:
    assert "dtype= is a floating-point type" in refusal(lambda: whence.load("planted", dtype=dtype))


def test_a_file_is_no_folder(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is a file; give the folder" in refusal(lambda: whence.load(saved / "config.json"))
    (tmp_path / "model.bin").write_text("x")
    monkeypatch.chdir(tmp_path)
    assert "is a file; give the folder" in refusal(lambda: whence.load("model.bin"))


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("config.json", b"{", "not a valid JSON file"),
        ("config.json", b"", "not a valid JSON file"),
        ("config.json", b"[]", "cannot be read as a model"),
        ("config.json", bytes(range(256)), "cannot be read as a model"),
        ("model.safetensors", b"", "the weights of"),
        ("model.safetensors", b"x" * 10_000, "the weights of"),
        ("model.safetensors", None, "the weights of"),
        ("tokenizer.json", b"{", "has no tokenizer that can be read"),
    ],
)
def test_broken_files(file: str, content: bytes | None, words: str, saved: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(saved, tmp_path / "broken")
    (folder / file).write_bytes((saved / file).read_bytes()[:5000] if content is None else content)
    assert words in refusal(lambda: whence.load(folder))


@pytest.mark.parametrize("architectures", [3, [3], "Bert", [None], [], ["BertConfig"]], ids=repr)
def test_configs_that_name_no_class(architectures: Any, saved: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(saved, tmp_path / "broken")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": architectures}))
    assert "names the architecture" in refusal(lambda: whence.load(folder))


def test_a_name_that_is_nowhere() -> None:
    """The tests run off-line, as `HF_HUB_OFFLINE` says: no hub is asked."""
    assert "cannot be read as a model" in refusal(lambda: whence.load("nobody/nothing"))
