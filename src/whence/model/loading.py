"""Making Subjects of models in memory, in folders and on the hub."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whence import zoo
from whence.core import tasks
from whence.core.wording import first_sentence, shown, suggest
from whence.model import encoding
from whence.model.subject import Subject

# Endings of buffers that older versions of transformers saved and newer ones compute.
_RECOMPUTED = ("position_ids", "token_type_ids", "attn.bias", "attn.masked_bias", "inv_freq", "relative_position_index")
# Endings of weights of heads that models of other tasks leave out, as checkpoints of pretrained models have them.
_OTHER_HEADS = tuple(f"{head}.{end}" for head in ("pooler.dense", "seq_relationship") for end in ("weight", "bias"))
_NOT_TEXT = {"bbox", "image", "pixel_values", "input_features", "visual_feats", "xpath_tags_seq"}  # arguments
MAX_LETTERS = 1_000  # of a name
_TOKENIZER_FILES = ("tokenizer", "vocab", "spiece", "sentencepiece", "source.spm", "merges")  # how their names begin


def wrap(
    model: nn.Module,
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
    _check_arguments(processor, task, labels, encode, output)
    task = task or ("module" if encode is not None else _task_of(model))
    if task not in tasks.NAMES:
        raise ValueError(f"unknown task {task!r}; {suggest(task, tasks.NAMES)}")
    if task == "module" and encode is None:
        known = ", ".join(name for name in tasks.NAMES if name != "module")
        raise ValueError(
            f"{type(model).__name__} is not a model whose inputs are known; pass encode=function, which turns a raw "
            f"example into the module's tensors and feature names, or task= one of {known}"
        )
    word_embedding = _module_name(model, embedding)
    named = len(labels) if labels else None  # classes that the caller has names for
    if hasattr(model, "logit_scale") and output is None and task == "image-text":
        labels = ("similarity",)  # of picture and text: the only logit that such a model has
    elif labels is None:
        labels = _labels_of(model, task)
    subject = Subject(
        model,
        processor,
        task=task,
        labels=labels,
        encode=encode,
        output=output,
        embedding=word_embedding,
        name=str(name),
        classes=named,
    )
    if subject.regression and all(re.fullmatch(r"LABEL_\d+", label) for label in subject.labels or ()):
        count = len(subject.labels or ())  # the config gives no names
        subject.labels = ("output",) if count == 1 else tuple(f"output {number}" for number in range(count))
    return subject


def load(
    name: str | Path,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | str | None = None,
    trust_remote_code: bool = False,
) -> Subject:
    """A Subject by name: an embedded model, a folder, or a hub id. Weights are read from safetensors only.

    Code that a folder or hub id brings along runs only with `trust_remote_code=True`.
    """
    if not isinstance(name, str | Path) or not str(name).strip() or len(str(name)) > MAX_LETTERS:
        raise ValueError(f"load takes the name of an embedded model, a folder or a hub id, not {shown(name)}")
    _check_device(device)
    _check_dtype(dtype)
    embedded = str(name) in zoo.names()
    place = str(zoo.folder(str(name))) if embedded else os.path.expanduser(name)
    if not embedded:
        _check_place(place)
    trust = {"trust_remote_code": trust_remote_code is True}  # always passed: else transformers asks on stdin
    model = _model(place, trust, {} if dtype is None else {"dtype": dtype})
    task = _task_of(model)
    processor = _processor(place, task, trust)
    if processor is None and task != "module":
        kind = "image processor" if tasks.TASKS[task].processor == "AutoImageProcessor" else "tokenizer"
        raise ValueError(
            f"{place!r} has no {kind} that can be read, which {task} needs; save it beside the model, or wrap the "
            "model with one"
        )
    encode = zoo.encoder(str(name), _text_encoder(processor)) if embedded else None
    return wrap(model.to(device) if device else model, processor, task=task, encode=encode, name=Path(place).name)


def _check_arguments(processor: Any, task: Any, labels: Any, encode: Any, output: Any) -> None:
    """An error for an argument of `wrap` that is not of its kind."""
    for name, function in (("encode", encode), ("output", output)):
        if function is not None and not callable(function):
            raise TypeError(f"{name}= is a function, not {shown(function)}")
    if isinstance(processor, type):
        raise TypeError(f"the processor is an instance, and the class {processor.__name__} came; make one of it")
    if task is not None and not isinstance(task, str):
        raise TypeError(f"task= is one of {', '.join(tasks.NAMES)}, not {shown(task)}")
    if labels is None:
        return
    if isinstance(labels, str) or not isinstance(labels, Sequence) or not all(isinstance(one, str) for one in labels):
        raise TypeError(f"labels= is a list of names, one per class, as ['negative', 'positive'], not {shown(labels)}")
    if not labels or len(set(labels)) < len(labels):
        raise ValueError(f"labels= gives every class a name of its own, and {shown(labels)} came")


# --- what is known of a model in memory -------------------------------------------------------------------------------


def _task_of(model: nn.Module) -> str:
    """The task of a model, from the table in which transformers lists its class; "module" for any other."""
    try:
        from transformers.models.auto import modeling_auto
    except ImportError:
        return "module"
    classes = {parent.__name__ for parent in type(model).__mro__}
    for name, task in tasks.TASKS.items():
        for table in task.heads:
            entries = getattr(modeling_auto, table, {}).values()  # a class's name, or several
            listed = {one for entry in entries for one in (entry if isinstance(entry, tuple) else (entry,))}
            if classes & listed and (not task.reads or _reads_texts(model, task.reads)):
                return name
    class_name = type(model).__name__
    return next(
        (name for name, task in tasks.TASKS.items() if any(part in class_name for part in task.unlisted)), "module"
    )


def _reads_texts(model: nn.Module, reads: str) -> bool:
    """Whether a model that decides at tokens is fed with texts alone, and finds answers in them, not in a table."""
    arguments = inspect.signature(model.forward).parameters
    return not arguments.keys() & _NOT_TEXT and (reads != "span" or "start_positions" in arguments)


def _labels_of(model: nn.Module, task: str) -> list[str] | None:
    """The names of the classes in the model's config; None for models that predict tokens or answers."""
    names = getattr(getattr(model, "config", None), "id2label", None)
    classes = not tasks.TASKS[task].generates and tasks.TASKS[task].reads in ("", "token")
    return [str(names[key]) for key in sorted(names)] if names and classes else None


def _module_name(model: nn.Module, module: str | nn.Module | None) -> str | None:
    """The name of the word embedding, which is given by name or as the module itself."""
    found = next((name for name, one in model.named_modules() if one is module or name == module), None)
    if module is not None and found is None:
        raise ValueError(f"embedding={module!r} is no module of {type(model).__name__}; give its name or the module")
    return found


def _text_encoder(tokenizer: Any) -> Callable[[str], Any]:
    """A function that encodes a text with this tokenizer, for embedded models that encode the rest themselves."""
    limit = getattr(tokenizer, "model_max_length", None)
    return functools.partial(encoding.encode, task="text-classification", processor=tokenizer, max_length=limit)


# --- reading a folder or a hub id -------------------------------------------------------------------------------------


def _check_place(place: str) -> None:
    """An error for a folder that does not exist and for a misspelt embedded model, before a hub is asked for it."""
    if Path(place).is_file():
        raise ValueError(f"{place!r} is a file; give the folder that holds config.json and the weights")
    if not Path(place).is_dir() and ("\\" in place or place.startswith((".", "/", "~"))):
        raise FileNotFoundError(f"there is no folder {place!r}; give a folder with config.json, or a hub id")
    near = difflib.get_close_matches(place, zoo.names(), n=1, cutoff=0.7)
    if near and not Path(place).exists():
        raise FileNotFoundError(f"there is no model {place!r}; did you mean {near[0]!r}?")
    if Path(place).is_dir() and not (Path(place) / "config.json").exists():
        raise ValueError(f"the folder {place!r} has no config.json; give one that save_pretrained made")


def _check_device(device: Any) -> None:
    """An error for a device that torch does not know or that this machine lacks, before anything is read."""
    if device is None:
        return
    try:
        if isinstance(device, bool) or not isinstance(device, str | int | torch.device) or device == "":
            raise TypeError("it is named by a text such as 'cpu' or 'cuda:0'")
        torch.empty(0, device=device)
    except (AssertionError, NotImplementedError, RuntimeError, TypeError) as error:
        raise ValueError(f"the device {shown(device)} cannot be used here: {first_sentence(error)}") from error


def _check_dtype(dtype: Any) -> None:
    """An error for a type of numbers that a model cannot have."""
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype not in (None, "auto") and not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise ValueError(f"dtype= is a floating-point type, as 'bfloat16' or torch.float32, not {shown(dtype)}")


def _model(place: str, trust: dict[str, Any], options: dict[str, Any]) -> Any:
    """The model of a folder or hub id, with every weight it needs, in eval mode."""
    model_class, architecture = _model_class(place, trust)
    wanted = {"use_safetensors": True, "output_loading_info": True, "ignore_mismatched_sizes": True}
    try:
        # weights of a folder are read in an instant; those that are missing are drawn, before they are refused
        with _no_progress_bar(), torch.random.fork_rng(devices=[]):
            model, info = model_class.from_pretrained(place, **trust, **options, **wanted)
    except Exception as error:
        raise ValueError(
            f"the weights of {place!r} cannot be read; they must be in safetensors form and fit the config: "
            f"{first_sentence(error)}"
        ) from error
    missing = sorted({*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])})
    if missing:
        raise ValueError(
            f"{place!r} lacks weights that {architecture} needs, or has them in another shape ({_some_of(missing)}), "
            "so its answers would be random; load a checkpoint that was trained for this task"
        )
    unused = sorted(key for key in info["unexpected_keys"] if not key.endswith((*_RECOMPUTED, *_OTHER_HEADS)))
    if unused:
        raise ValueError(
            f"{place!r} holds weights that {architecture} with this config.json has no place for ({_some_of(unused)}), "
            "so it would be another model than was trained; correct the config, or build the model yourself and wrap it"
        )
    return model.eval()


def _some_of(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + ", ..." * (len(names) > 3)


def _model_class(place: str, trust: dict[str, Any]) -> tuple[Any, str]:
    """The class that the config names, and that name; AutoModel for a model with trusted code of its own."""
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(place, **trust)
    except Exception as error:
        if _wants_trust(error):
            raise _untrusted(place) from error
        raise ValueError(f"{place!r} cannot be read as a model: {first_sentence(error)}") from error
    named = getattr(config, "architectures", None)
    architecture = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    model_class: Any = getattr(transformers, architecture, None) if architecture else None
    if isinstance(model_class, type) and issubclass(model_class, transformers.PreTrainedModel):
        return model_class, architecture
    if not trust["trust_remote_code"]:
        raise ValueError(
            f"{place!r} names the architecture {architecture!r}, which transformers {transformers.__version__} "
            "does not have; if its own code may run here, pass trust_remote_code=True"
        )
    return transformers.AutoModel, architecture


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """A scope without the progress bars of transformers; afterwards they are as they were."""
    import transformers

    enabled = transformers.logging.is_progress_bar_enabled()
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            transformers.logging.enable_progress_bar()


def _processor(place: str, task: str, trust: dict[str, Any]) -> Any:
    """The tokenizer or processor that a task needs; None when the folder has none: encoding then raises."""
    import transformers

    try:
        processor = getattr(transformers, tasks.TASKS[task].processor).from_pretrained(place, **trust)
    except Exception as error:  # tokenizers raise errors of no kind of their own
        if _wants_trust(error):
            raise _untrusted(place) from error
        if not isinstance(error, OSError | ValueError):
            raise ValueError(
                f"the tokenizer or processor of {place!r} cannot be read: {first_sentence(error)}"
            ) from error
        return None
    # Where a tokenizer's files are missing, transformers makes a tokenizer without words and gives no warning.
    is_tokenizer = hasattr(processor, "convert_ids_to_tokens")
    return None if is_tokenizer and Path(place).is_dir() and not _has_tokenizer_files(Path(place)) else processor


def _has_tokenizer_files(folder: Path) -> bool:
    """Whether a folder holds a tokenizer's vocabulary, in any of its usual forms."""
    return any(file.name.startswith(_TOKENIZER_FILES) for file in folder.iterdir())


def _wants_trust(error: Exception) -> bool:
    return "trust_remote_code" in str(error)


def _untrusted(place: str) -> ValueError:
    return ValueError(f"{place!r} brings code of its own; if it may run here, pass trust_remote_code=True")
