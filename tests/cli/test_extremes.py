"""Extreme and mistyped arguments of commands: one line on stderr and exit code 1, never a traceback."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from whence.cli import app

HUGE, ENDLESS = "9" * 400, "9" * 5000


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["explain", "a film", "--seed", "-1"], "seed takes a whole number from 0"),
        (["explain", "a film", "--seed", HUGE], "seed takes a whole number from 0"),
        (["explain", "a film", "--batch-size", HUGE], "batch_size takes a whole number"),
        (["explain", "a film", "--device", "gpu"], "the device 'gpu' cannot be used here"),
        (["explain", "a film", "--target", ENDLESS], "a target has at most 1,000 letters"),
        (["explain", '{"text": ' + "[" * 5000, "--method", "random", "--truncate", "--device", ""], "the device ''"),
        (["explain", "a film", "--method", "integrated_gradients", "--tolerance", "nan"], "a number from 0 to 100"),
        (
            ["explain", "a film", "--method", "integrated_gradients", "--steps", ENDLESS],
            "whole number from 1 to 10,000",
        ),
        (["explain", "a film", "--method", "path_gradients(points=10**12)"], "cannot read the spec"),
        (["explain", "a film", "--method", "path_gradients(points=1000000000000)"], "from 1 to 1,000"),
        (["conservation", "a film", "--token", HUGE], "token takes a whole number"),
        (["attention", "a film", "--query", ENDLESS], "query"),
        (["arbitrate", "a film", "--candidates", ""], "candidates is a list of at least one"),
    ],
)
def test_one_line(args: list[str], words: str) -> None:
    run = CliRunner().invoke(app, [*args, "--model", "planted"])
    assert run.exit_code == 1 and isinstance(run.exception, SystemExit), run.output
    lines = run.stderr.splitlines()
    assert (
        len(lines) == 1 and lines[0].startswith("error: ") and words in lines[0] and "Exceeds the limit" not in lines[0]
    )


def test_json_that_is_too_deep_is_a_text() -> None:
    run = CliRunner().invoke(app, ["explain", '{"text": ' + "[" * 5000, "--method", "random", "--model", "planted"])
    assert "RecursionError" not in run.stderr
