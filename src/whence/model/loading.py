"""Making Subjects: of models in memory, in folders and on the hub."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from whence import zoo
from whence.core import tasks
from whence.core.wording import suggest
from whence.model.subject import Subject

_TOKENIZER_FILES = ("tokenizer", "vocab", "spiece", "sentencepiece", "source.spm", "merges")


def wrap(
    model: Any,
    processor: Any = None,
    *,
    task: str | None = None,
    labels: Sequence[str] | None = None,
    encode: Callable[[Any], dict[str, Any]] | None = None,
    output: Callable[[Any], Tensor] | None = None,
    embedding: str | nn.Module | None = None,
    name: str = "",
) -> Subject:
    """A Subject of a model in memory: a Hugging Face model with its tokenizer or processor, or any torch module.

    `encode(raw)` gives a module's own inputs and feature names, `output(outputs)` its logits (batch, class),
    `embedding` its word embedding where that is not found by itself, `labels` the names of its classes.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"wrap takes a torch module, not {type(model).__name__}; whence.load takes names and folders")
    task = task or _task(model, processor, encode)
    if task not in tasks.NAMES:
        raise ValueError(f"unknown task {task!r}; {suggest(task, tasks.NAMES)}")
    if task == "module" and encode is None:
        raise ValueError(
            f"{type(model).__name__} is not a model whose inputs are known; pass encode=function, which turns a raw "
            "example into the module's tensors and feature names, or task= one of " + ", ".join(tasks.NAMES[:-1])
        )
    word = next((n for n, m in model.named_modules() if m is embedding or n == embedding), None)
    if embedding is not None and word is None:
        raise ValueError(f"embedding={embedding!r} is no module of {type(model).__name__}; give its name or the module")
    if labels is None:
        named = getattr(getattr(model, "config", None), "id2label", None)
        labels = [str(named[key]) for key in sorted(named)] if named and not tasks.TASKS[task].generates else None
    if hasattr(model, "logit_scale") and output is None and task == "image-text":
        labels = ("similarity",)
    return Subject(model, processor, task=task, labels=labels, encode=encode, output=output, embedding=word, name=name)


def load(name: str | Path, *, device: str | None = None, dtype: Any = None, trust_remote_code: bool = False) -> Subject:
    """A Subject by name: an embedded model, a folder, or a hub id. Weights are read from safetensors only."""
    embedded = str(name) if str(name) in zoo.names() else None
    place = str(zoo.folder(embedded)) if embedded else os.path.expanduser(name)
    if not Path(place).is_dir() and ("\\" in place or place.startswith((".", "/", "~"))):
        raise FileNotFoundError(f"there is no folder {place!r}; give a folder with config.json, or a hub id")
    near = difflib.get_close_matches(place, zoo.names(), n=1, cutoff=0.8)
    if near and not embedded and not Path(place).exists():  # before a hub is asked for it
        raise FileNotFoundError(f"there is no model {place!r}; did you mean {near[0]!r}?")
    options: dict[str, Any] = {"trust_remote_code": True} if trust_remote_code else {}
    model = _model(place, options | ({} if dtype is None else {"dtype": dtype}))
    task = _task(model, None, None)
    processor = _processor(place, task, options)
    encode = zoo.encoder(embedded, processor) if embedded else None
    return wrap(model.to(device) if device else model, processor, task=task, encode=encode, name=Path(place).name)


def _model(place: str, options: dict[str, Any]) -> Any:
    """The model of a folder or hub id, with every weight it needs, in eval mode; one sentence where that fails."""
    import transformers

    if Path(place).is_dir() and not (Path(place) / "config.json").exists():
        raise ValueError(f"the folder {place!r} has no config.json; give one that save_pretrained made")
    trusted = {key: value for key, value in options.items() if key == "trust_remote_code"}
    try:
        config = transformers.AutoConfig.from_pretrained(place, **trusted)
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise ValueError(
                f"{place!r} brings code of its own; if it may run here, pass trust_remote_code=True"
            ) from error
        raise ValueError(f"{place!r} cannot be read as a model: {_sentence(error)}") from error
    architecture = (getattr(config, "architectures", None) or [""])[0]
    kind: Any = getattr(transformers, architecture, None) if architecture else None
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        if not trusted:
            raise ValueError(
                f"{place!r} names the architecture {architecture!r}, which transformers {transformers.__version__} "
                "does not have; if its own code may run here, pass trust_remote_code=True"
            )
        kind = transformers.AutoModel
    options = options | {"use_safetensors": True, "output_loading_info": True, "ignore_mismatched_sizes": True}
    bars = transformers.logging.is_progress_bar_enabled()
    transformers.logging.disable_progress_bar()  # weights of a folder are there in an instant
    try:
        model, info = kind.from_pretrained(place, **options)
    except Exception as error:
        raise ValueError(
            f"the weights of {place!r} cannot be read; they must be in safetensors form and fit the config: "
            f"{_sentence(error)}"
        ) from error
    finally:
        if bars:
            transformers.logging.enable_progress_bar()
    missing = sorted({*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])})
    if missing:
        names = ", ".join(missing[:3]) + ", ..." * (len(missing) > 3)
        raise ValueError(
            f"{place!r} lacks weights that {architecture} needs, or has them in another shape ({names}), "
            "so its answers would be random; load a checkpoint that was trained for this task"
        )
    return model.eval()


def _processor(place: str, task: str, options: dict[str, Any]) -> Any:
    """The tokenizer or processor that a task needs; None when the folder has none, which encoding then says."""
    import transformers

    kinds = {"image-classification": transformers.AutoImageProcessor, "image-text": transformers.AutoProcessor}
    try:
        processor = kinds.get(task, transformers.AutoTokenizer).from_pretrained(place, **options)
    except (OSError, ValueError):
        return None
    files = [file.name for file in Path(place).iterdir()] if Path(place).is_dir() else []
    made_up = files and not any(name.startswith(_TOKENIZER_FILES) for name in files)
    # transformers makes up a tokenizer without words where the files are missing
    return None if made_up and hasattr(processor, "convert_ids_to_tokens") else processor


def _sentence(error: Exception) -> str:
    """The first sentence of an error."""
    return re.split(r"(?<=[.!?])\s|\n", str(error).strip() or repr(error), maxsplit=1)[0].rstrip(".")


def _task(model: nn.Module, processor: Any, encode: Any) -> str:
    """The task of a model, from the head that transformers lists its class under."""
    if encode is not None:
        return "module"
    try:
        from transformers.models.auto import modeling_auto as auto
    except ImportError:
        return "module"
    classes = {parent.__name__ for parent in type(model).__mro__}
    for name, task in tasks.TASKS.items():
        for table in task.heads:
            listed = getattr(auto, table, {}).values()
            if classes & {one for entry in listed for one in (entry if isinstance(entry, tuple) else (entry,))}:
                return name
    return "image-text" if "ImageAndTextRetrieval" in type(model).__name__ else "module"
