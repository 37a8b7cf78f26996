"""Making Subjects: of models in memory, in folders and on the hub."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from whence import encoding, zoo
from whence.registry import suggest
from whence.subject import Subject


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
    if task not in encoding.TASKS:
        raise ValueError(f"unknown task {task!r}; {suggest(task, encoding.TASKS)}")
    if task == "module" and encode is None:
        raise ValueError(
            f"{type(model).__name__} is not a model whose inputs are known; pass encode=function, which turns a raw "
            "example into the module's tensors and feature names, or task= one of " + ", ".join(encoding.TASKS[:-1])
        )
    word = next((n for n, m in model.named_modules() if m is embedding or n == embedding), None)
    if embedding is not None and word is None:
        raise ValueError(f"embedding={embedding!r} is no module of {type(model).__name__}; give its name or the module")
    if labels is None:
        named = getattr(getattr(model, "config", None), "id2label", None)
        labels = (
            [str(named[key]) for key in sorted(named)] if named and task not in ("causal-lm", "seq2seq-lm") else None
        )
    if hasattr(model, "logit_scale") and output is None and task == "image-text":
        labels = ("similarity",)
    return Subject(model, processor, task=task, labels=labels, encode=encode, output=output, embedding=word, name=name)


def load(name: str | Path, *, device: str | None = None, dtype: Any = None, trust_remote_code: bool = False) -> Subject:
    """A Subject by name: an embedded model, a folder, or a hub id. Weights are read from safetensors only."""
    import transformers

    embedded = str(name) if str(name) in zoo.names() else None
    place = str(zoo.folder(embedded)) if embedded else str(name)
    if not Path(place).is_dir() and ("\\" in place or place.startswith((".", "/", "~"))):
        raise FileNotFoundError(f"there is no folder {place!r}; give a folder with config.json, or a hub id")
    shared = {"trust_remote_code": trust_remote_code}
    try:
        config = transformers.AutoConfig.from_pretrained(place, **shared)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{place!r} could not be loaded as a folder or hub id: {str(error).splitlines()[0]}"
        ) from error
    architecture = (getattr(config, "architectures", None) or [""])[0]
    kind = getattr(transformers, architecture, None)
    if kind is None and not trust_remote_code:
        raise ValueError(
            f"{place!r} names the architecture {architecture!r}, which transformers {transformers.__version__} "
            "does not have; if its own code may run here, pass trust_remote_code=True"
        )
    kind = kind or transformers.AutoModel
    options = {} if dtype is None else {"dtype": dtype}
    try:
        model, info = kind.from_pretrained(
            place, use_safetensors=True, output_loading_info=True, **options, **(shared if trust_remote_code else {})
        )
    except OSError as error:
        raise ValueError(
            f"{place!r} has no weights in safetensors form, the only one that is read: {str(error).splitlines()[0]}"
        ) from error
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        shown = ", ".join(missing[:3]) + ", ..." * (len(missing) > 3)
        raise ValueError(
            f"{place!r} lacks weights that {architecture} needs ({shown}), "
            "so its answers would be random; load a checkpoint that was trained for this task"
        )
    model = model.to(device) if device else model
    task = _task(model, None, None)
    processor = _processor(place, task, shared)
    encode = zoo.encoder(embedded, processor) if embedded else None
    return wrap(model.eval(), processor, task=task, encode=encode, name=Path(place).name)


def _processor(place: str, task: str, options: dict[str, Any]) -> Any:
    """The tokenizer or processor that a task needs; None when the folder has none, which encoding then says."""
    import transformers

    kinds = {
        "image-classification": transformers.AutoImageProcessor,
        "image-text": transformers.AutoProcessor,
    }
    with contextlib.suppress(OSError, ValueError):
        return kinds.get(task, transformers.AutoTokenizer).from_pretrained(place, **options)
    return None


def _task(model: nn.Module, processor: Any, encode: Any) -> str:
    """The task of a model, from the head that transformers lists its class under."""
    if encode is not None:
        return "module"
    try:
        from transformers.models.auto import modeling_auto as auto
    except ImportError:
        return "module"
    heads = {
        "text-classification": ("MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",),
        "image-classification": ("MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",),
        "seq2seq-lm": ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",),
        "causal-lm": ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",),
        "image-text": (
            "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES",
            "MODEL_FOR_VISUAL_QUESTION_ANSWERING_MAPPING_NAMES",
        ),
    }
    classes = {parent.__name__ for parent in type(model).__mro__}
    for task, tables in heads.items():
        for table in tables:
            names = getattr(auto, table, {}).values()
            if classes & {name for entry in names for name in (entry if isinstance(entry, tuple) else (entry,))}:
                return task
    return "image-text" if "ImageAndTextRetrieval" in type(model).__name__ else "module"
