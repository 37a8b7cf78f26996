"""`whence.load` on folders: the same model as in memory, or one sentence that says what is wrong with the folder."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import whence
from families import family, fresh
from whence.core.tasks import TASKS

NAMES = ["bert", "vit", "gpt2", "t5", "clip"]
WEIGHTS = "model.safetensors"
PROCESSING = ("tokenizer", "preprocessor", "processor", "special_tokens", "vocab", "merges")  # begin such files' names


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(count)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in a folder needs nothing from elsewhere."""

    def connect(*args: Any) -> None:
        pytest.fail("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", connect)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family, written once."""
    root = tmp_path_factory.mktemp("models")

    def folder(name: str) -> Path:
        if not (root / name).exists():
            made: Any = fresh(name)
            made.model.save_pretrained(root / name)
            made.processor.save_pretrained(root / name)
        return root / name

    return folder


@pytest.fixture
def copied(saved: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A folder of a family that the test may spoil."""
    return lambda name: Path(shutil.copytree(saved(name), tmp_path / name))


def configured(folder: Path, **changes: Any) -> Path:
    """The folder with other settings; None leaves a setting out."""
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return folder


def reweighted(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Path:
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS, metadata={"format": "pt"})
    return folder


def refused(folder: Path, *words: str, call: Callable[[Any], Any] = whence.load) -> None:
    """Refused with one sentence that names the folder."""
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        call(folder)
    message = str(caught.value)
    assert type(caught.value) in (ValueError, FileNotFoundError)
    assert "\n" not in message and not re.search(r"[.!?]\s+[A-Z]", message.rstrip("."))
    for word in (folder.name, *words):
        assert word in message


# --- What is loaded ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_is_explained_like_the_model_in_memory(name: str, saved: Callable[[str], Path]) -> None:
    made = family(name)
    loaded, wrapped = whence.load(saved(name)), whence.wrap(made.model, made.processor)
    assert (loaded.task, loaded.labels, loaded.name) == (wrapped.task, wrapped.labels, name)
    for method in ("gradient_x_input", "attention"):
        a = whence.explain(loaded, made.inputs[0], method=method)
        b = whence.explain(wrapped, made.inputs[0], method=method)
        assert (a.input, a.target, a.method, a.notes) == (b.input, b.target, b.method, b.notes)
        assert np.abs(a.scores - b.scores).max() <= 1e-5 * max(1.0, np.abs(b.scores).max())
        assert np.allclose(a.output, b.output, rtol=1e-5, atol=1e-5)


def test_a_folder_is_named_by_text_or_path(saved: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved("bert")
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("HOME", str(folder.parent))
    for name in (folder, str(folder), f"{folder}/", "bert", "./bert", "~/bert"):
        assert whence.load(name).name == "bert"


def test_a_loaded_model_is_ready_to_explain(saved: Callable[[str], Path]) -> None:
    loaded = whence.load(saved("bert"))
    assert not loaded.model.training and loaded.device.type == "cpu" and loaded.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, "bfloat16", torch.float64, "auto"])
def test_weights_are_read_in_the_type_asked_for(dtype: Any, saved: Callable[[str], Path]) -> None:
    loaded = whence.load(saved("bert"), dtype=dtype)
    wanted = {"bfloat16": torch.bfloat16, "auto": torch.float32}.get(dtype, dtype)
    assert loaded.dtype == wanted and all(p.dtype == wanted for p in loaded.model.parameters())
    a = whence.explain(loaded, "a film")
    plain = whence.explain(whence.load(saved("bert")), "a film")
    assert np.abs(a.scores - plain.scores).max() <= 0.1 * np.abs(plain.scores).max()


def test_a_type_that_there_is_not_is_refused(saved: Callable[[str], Path]) -> None:
    with pytest.raises(ValueError, match="dtype"):
        whence.load(saved("bert"), dtype="float7")


def test_a_device_is_taken(saved: Callable[[str], Path]) -> None:
    assert whence.load(saved("bert"), device="cpu").device == torch.device("cpu")
    assert whence.load(saved("bert"), device="meta").device == torch.device("meta")


def test_an_embedded_model_encodes_its_pictures_itself_and_is_given_what_encodes_text() -> None:
    item = whence.load("shapes").encode(whence.zoo.examples("shapes", 1)[0].input)
    assert set(item.streams) == {"text", "image"} and item.grid == (4, 4)
    assert item.features[0] == "[CLS]" and item.features[-1] == "region 3,3"
    with pytest.raises(ValueError, match=r"the text has \d+ tokens, \d+ more than the 32"):
        whence.load("shapes").encode({"image": item.image, "text": "what colour is the circle ? " * 10})


def test_transformers_has_what_the_table_of_tasks_names() -> None:
    from transformers.models.auto import modeling_auto

    for task in TASKS.values():
        assert hasattr(getattr(transformers, task.processor), "from_pretrained")
        assert all(getattr(modeling_auto, table) for table in task.heads)
        assert all(any(part in name for name in dir(transformers)) for part in task.unlisted)


# --- Weights ----------------------------------------------------------------------------------------------------------


def test_pickled_weights_are_refused(copied: Callable[[str], Path]) -> None:
    folder = copied("bert")
    torch.save(fresh("bert").model.state_dict(), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    refused(folder, "safetensors")


def test_pickled_weights_beside_safetensors_are_not_read(copied: Callable[[str], Path]) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return pytest.fail, ("the pickle was read",)

    folder = copied("bert")
    torch.save({"classifier.bias": Trap()}, folder / "pytorch_model.bin")
    assert whence.explain(whence.load(folder), "a film").scores.any()


def test_a_folder_without_weights_is_refused(copied: Callable[[str], Path]) -> None:
    folder = copied("bert")
    (folder / WEIGHTS).unlink()
    refused(folder, "safetensors")


def test_damaged_weights_are_refused(copied: Callable[[str], Path]) -> None:
    folder = copied("bert")
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:1000])
    refused(folder, "safetensors")


def test_a_model_without_its_head_is_refused(copied: Callable[[str], Path]) -> None:
    def headless(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: tensor for name, tensor in weights.items() if not name.startswith("classifier.")}

    refused(reweighted(copied("bert"), headless), "classifier.bias", "classifier.weight", "random")


def test_loading_draws_no_random_numbers(copied: Callable[[str], Path]) -> None:
    before = torch.get_rng_state()
    refused(configured(copied("bert"), hidden_size=48), "random")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_without_a_layer_is_refused(copied: Callable[[str], Path]) -> None:
    folder = configured(copied("bert"), num_hidden_layers=3)
    refused(folder, "bert.encoder.layer.2", "random")


def test_weights_of_another_shape_are_refused(copied: Callable[[str], Path]) -> None:
    def wider(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return weights | {"classifier.weight": torch.zeros(5, 32), "classifier.bias": torch.zeros(5)}

    refused(reweighted(copied("bert"), wider), "classifier.")


# --- Folders ----------------------------------------------------------------------------------------------------------


def test_a_folder_that_there_is_not_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(tmp_path / "nowhere", "no folder")
    monkeypatch.chdir(tmp_path)
    refused(Path("nowhere"), "no folder", call=lambda folder: whence.load(f"./{folder}"))
    refused(Path("nowhere"), "no folder", call=lambda folder: whence.load(f"~/{folder}"))


def test_a_folder_without_a_config_is_refused(copied: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied("bert")
    (folder / "config.json").unlink()
    refused(folder, "config.json")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "config.json")


def test_a_config_that_is_no_json_is_refused(copied: Callable[[str], Path]) -> None:
    folder = copied("bert")
    (folder / "config.json").write_text("{")
    refused(folder, "JSON")


@pytest.mark.parametrize("architecture", ["NoSuchModel", "pipeline", "BertTokenizer"])
def test_an_unknown_architecture_is_refused(architecture: str, copied: Callable[[str], Path]) -> None:
    refused(configured(copied("bert"), architectures=[architecture]), repr(architecture), "trust_remote_code=True")


def test_a_config_that_names_no_architecture_is_refused(copied: Callable[[str], Path]) -> None:
    refused(configured(copied("bert"), architectures=None), "architecture")


def test_an_unknown_kind_of_model_is_refused(copied: Callable[[str], Path]) -> None:
    refused(configured(copied("bert"), model_type="nosuch"), "nosuch")


def test_a_model_without_a_task_is_refused(copied: Callable[[str], Path]) -> None:
    def load(folder: Path) -> None:
        try:
            whence.load(folder)
        except ValueError as error:
            raise ValueError(f"{folder}: {error}") from error  # the sentence is wrap's, which knows of no folder

    refused(configured(copied("bert"), architectures=["BertModel"]), "BertModel", call=load)


# --- Tokenizers and processors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_missing_tokenizer_files_are_told(name: str, copied: Callable[[str], Path]) -> None:
    """Where they are missing, transformers makes up an empty tokenizer that reads every word as unknown."""
    folder = copied(name)
    for file in folder.iterdir():
        if file.name.startswith(PROCESSING):
            file.unlink()
    with pytest.raises(ValueError, match=r"(needs|lacks|has no) .*(tokenizer|image processor)") as caught:
        whence.explain(whence.load(folder), family(name).inputs[0])
    assert "\n" not in str(caught.value)


# --- Code that comes with a model -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bert", "nosuch"])
def test_code_in_a_folder_is_not_run(kind: str, copied: Callable[[str], Path], tmp_path: Path) -> None:
    folder, marker = copied("bert"), tmp_path / "ran"
    (folder / "own.py").write_text(f"open({str(marker)!r}, 'w').close()\nclass Config: ...\nclass Model: ...\n")
    own = {"AutoConfig": "own.Config", "AutoModelForSequenceClassification": "own.Model", "AutoModel": "own.Model"}
    configured(folder, auto_map=own, model_type=kind)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["auto_map"] = {"AutoTokenizer": ["own.Tokenizer", None]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if kind == "bert":  # transformers has the class itself
        assert whence.explain(whence.load(folder), "a film").scores.any()
    else:
        refused(folder, "trust_remote_code=True")
    assert not marker.exists()


OWN_CODE = {  # a file of settings, and what in it names code of the folder's own
    "config": ("config.json", {"AutoConfig": "own.Config"}),
    "model": ("config.json", {"AutoModelForSequenceClassification": "own.Model", "AutoModel": "own.Model"}),
    "tokenizer": ("tokenizer_config.json", {"AutoTokenizer": ["own.Tokenizer", "own.Tokenizer"]}),
    "processor": ("preprocessor_config.json", {"AutoImageProcessor": ["own.Processor", "own.Processor"]}),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", OWN_CODE)
def test_a_yes_on_standard_input_runs_no_code(kind: str, copied: Callable[[str], Path], tmp_path: Path) -> None:
    """transformers asks on standard input whether a folder's code may run, unless it was told no."""
    folder, marker = copied("vit" if kind == "processor" else "bert"), tmp_path / "ran"
    (folder / "own.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    name, own = OWN_CODE[kind]
    settings = json.loads((folder / name).read_text()) | {"auto_map": own}
    settings |= {"config": {"model_type": "nosuch"}, "model": {"architectures": ["NoSuch"]}}.get(kind, {})
    settings |= {"tokenizer": {"tokenizer_class": "NoSuch"}, "processor": {"image_processor_type": "NoSuch"}}.get(
        kind, {}
    )
    (folder / name).write_text(json.dumps(settings))
    code = f"import whence; whence.load({str(folder)!r})"
    ran = subprocess.run([sys.executable, "-c", code], input="y\n" * 9, capture_output=True, text=True)
    assert not marker.exists()
    if kind == "tokenizer":  # tokenizer.json says all, so that no code is needed
        assert ran.returncode == 0, ran.stderr
    else:
        assert ran.returncode == 1 and "trust_remote_code=True" in ran.stderr.splitlines()[-1], ran.stderr


@pytest.mark.parametrize("trusted", [False, True])
def test_code_is_trusted_only_by_name(
    trusted: bool, saved: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def spied(kind: Any) -> None:
        original = kind.from_pretrained

        def from_pretrained(*args: Any, **options: Any) -> Any:
            given[kind.__name__] = options.get("trust_remote_code")
            return original(*args, **options)

        monkeypatch.setattr(kind, "from_pretrained", from_pretrained)

    for kind in (transformers.AutoConfig, transformers.BertForSequenceClassification, transformers.AutoTokenizer):
        spied(kind)
    whence.load(saved("bert"), **({"trust_remote_code": True} if trusted else {}))
    assert len(given) == 3
    assert set(given.values()) == {trusted}  # said every time, also where it is no


def test_weights_for_which_the_config_has_no_place_are_refused(copied: Callable[[str], Path]) -> None:
    """With fewer layers than were trained, the rest would load and answer as another model."""
    folder = copied("bert")
    configured(folder, num_hidden_layers=1)
    refused(folder, "holds weights that BertForSequenceClassification with this config.json has no place for")


def test_buffers_that_older_versions_saved_are_no_weights(copied: Callable[[str], Path]) -> None:
    folder = copied("bert")
    weights = load_file(folder / WEIGHTS)
    save_file(weights | {"bert.embeddings.position_ids": torch.arange(8)}, folder / WEIGHTS, {"format": "pt"})
    assert whence.explain(whence.load(folder), "a film").scores.any()


def test_a_name_that_is_nearly_an_embedded_one() -> None:
    with pytest.raises(FileNotFoundError, match="there is no model 'sts2'; did you mean 'sst2'"):
        whence.load("sts2")
    with pytest.raises(FileNotFoundError, match="there is no model 'plantd'; did you mean 'planted'"):
        whence.load("plantd")
