"""The kinds of task: the named parts of their inputs, and where transformers has their models and processors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """A kind of model: the parts of its inputs, whether it generates tokens, and how transformers names it."""

    required: tuple[str, ...] = ()  # named parts of an input
    optional: tuple[str, ...] = ()
    generates: bool = False
    # What is decided at single tokens: "" nothing, there is one decision for the whole input; "token" a label of one
    # token, "mask" the word at one token, "span" at which tokens an answer starts and ends.
    reads: str = ""
    heads: tuple[str, ...] = ()  # tables of transformers.models.auto.modeling_auto that list the classes of models
    unlisted: tuple[str, ...] = ()  # parts of the names of classes that no table lists
    processor: str = "AutoTokenizer"  # the class of transformers that loads what encodes the inputs

    @property
    def parts(self) -> tuple[str, ...]:
        """All named parts, in the order of a tuple that is short for them."""
        return self.required + self.optional

    @property
    def further(self) -> tuple[str, ...]:
        """Keys of an input beside its parts: messages in place of its text, and when generating stops."""
        if self.generates:
            return ("messages", *GENERATION)
        return ("messages",) if self.required == ("image", "text") else ()


GENERATION = ("max_tokens", "stop")  # the most tokens that a model writes, and the text or texts at which it stops
TASKS = {
    "text-classification": Task(("text",), ("pair",), heads=("MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",)),
    "image-classification": Task(
        ("image",), heads=("MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",), processor="AutoImageProcessor"
    ),
    "seq2seq-lm": Task(
        ("source",), ("output",), generates=True, heads=("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",)
    ),
    "causal-lm": Task(("prompt",), ("continuation",), generates=True, heads=("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",)),
    # A language model that looks at pictures: their patches are tokens of its text.
    "image-text-lm": Task(
        ("image", "prompt"),
        ("continuation",),
        generates=True,
        heads=("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",),
        processor="AutoProcessor",
    ),
    "token-classification": Task(("text",), reads="token", heads=("MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",)),
    "question-answering": Task(
        ("question", "context"), reads="span", heads=("MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",)
    ),
    # After those that generate: transformers lists Bart and XLM as masked language models too.
    "masked-lm": Task(("text",), ("pair",), reads="mask", heads=("MODEL_FOR_MASKED_LM_MAPPING_NAMES",)),
    "image-text": Task(
        ("image", "text"),
        heads=(
            "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES",
            "MODEL_FOR_VISUAL_QUESTION_ANSWERING_MAPPING_NAMES",
        ),
        unlisted=("ImageAndTextRetrieval",),
        processor="AutoProcessor",
    ),
    "module": Task(),  # a plain torch module: its own encoder makes its inputs
}
NAMES = tuple(TASKS)
# Columns of a table of inputs.
PARTS = tuple(dict.fromkeys(part for task in TASKS.values() for part in (*task.parts, *task.further)))
GENERATED_PARTS = tuple(part for task in TASKS.values() if task.generates for part in task.optional)
