"""The bodies of requests and answers, as the OpenAPI description shows them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Start(BaseModel):
    """A run: the methods on one input, or the attention of one input."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(max_length=100, description="The name of a listed model.", examples=["sst2"])
    kind: Literal["explain", "attention"] = "explain"
    texts: dict[str, str] = Field(
        default_factory=dict,
        max_length=4,
        description="The text parts of the input by name, as the model lists them.",
        examples=[{"text": "a masterful film"}],
    )
    picture: str | None = Field(None, max_length=64, description="The name that POST /api/pictures gave.")
    example: int | None = Field(None, ge=0, le=1000, description="Take the picture of this example of the model.")
    target: str | int | None = Field(None, description="A label, a number, or a kind of target; null: the prediction.")
    methods: list[str] = Field(
        default_factory=list,
        description="Names, or names with options.",
        examples=[["leave_one_out", "integrated_gradients(steps=32)"]],
    )
    ignore: list[str] = Field(
        default_factory=list,
        max_length=100,
        description="Words that must not count: attention to every occurrence is closed in every pass.",
        examples=[["film"]],
    )
    seed: int = Field(0, ge=0, le=2**63 - 1)
    level: Literal["token", "word", "sentence", "message", "document"] = Field(
        "token", description="What the features are; methods that hide features hide whole units."
    )


class Metric(BaseModel):
    """The metric by which all explanations of a job are measured."""

    model_config = ConfigDict(extra="forbid")

    metric: str = Field("auac", max_length=300, description="A metric that needs no truth, with options or without.")


class Error(BaseModel):
    """The answer to every refused request."""

    error: str = Field(description="One sentence: what was expected, what came, what to do.")


class Picture(BaseModel):
    """A picture that was sent and is kept for a while."""

    picture: str
    width: int
    height: int


class JobState(BaseModel):
    """How far a job has come, and its results so far."""

    job: str
    kind: str
    state: Literal["waiting", "running", "done", "cancelled", "failed"]
    error: str = ""
    about: dict[str, Any] = Field(description="The features, the prediction and, for planted examples, the truth.")
    results: list[dict[str, Any]] = Field(description="One entry per result, in the order in which they were made.")
    files: list[str] = Field(description="The endings in which a result can be fetched.")
