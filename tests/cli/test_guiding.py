"""`whence guide` and `whence losses` as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

import whence
from shortcuts import classifier, sentences
from whence.cli import app


def written(folder: Path) -> tuple[str, str]:
    """A small model as a folder, and sentences with labels and rationales as a table."""
    subject, model, table = classifier(), folder / "model", folder / "sentences.jsonl"
    subject.model.save_pretrained(model)
    subject.processor.save_pretrained(model)
    table.write_text("\n".join(map(json.dumps, sentences(14, 5, True))), encoding="utf-8")
    return str(table), str(model)


def test_guide_trains_and_writes(tmp_path: Path) -> None:
    page, saved, folder = tmp_path / "g.html", tmp_path / "g.json", tmp_path / "models"
    table, model = written(tmp_path)
    words = ["guide", table, "-m", model, "--loss", "rationale(weight=0.5),entropy(weight=0.1)", "--held-out", "0.3"]
    words += ["--seeds", "3", "--epochs", "1", "--no-control", "--method", "attention", "--folder", str(folder)]
    result = CliRunner().invoke(app, [*words, "--html", str(page), "--save", str(saved)])
    assert result.exit_code == 0, result.output
    assert "plausibility of attention" in result.output and "as it was given" in result.output
    assert "of examples alone, since one seed says nothing of others" in " ".join(result.output.split())
    found = whence.load_result(saved)
    assert isinstance(found, whence.Guidance) and found.seeds == (3,) and found.folder == str(folder)
    assert "Measures before and after" in page.read_text(encoding="utf-8")
    assert whence.load(str(folder / "seed-3")).labels == ("negative", "positive")


def test_misuse_is_said_in_a_sentence(tmp_path: Path) -> None:
    table, model = written(tmp_path)
    for words, said in (
        (["guide", table, "-m", model], "name a loss with --loss"),
        (["guide", table, "-m", model, "--loss", "rationale", "--seeds", "a"], "--seeds takes whole numbers"),
        (["guide", table, "-m", model, "--loss", "entropi"], "did you mean 'entropy'"),
        (["guide", "missing.csv", "-m", model, "--loss", "rationale"], "no file or folder 'missing.csv' to train on"),
        (["losses", "rational"], "did you mean 'rationale'"),
    ):
        result = CliRunner().invoke(app, words)
        assert result.exit_code != 0
        assert said in " ".join(f"{result.output} {result.exception}".split())
        assert " on on" not in result.output


def test_losses_are_listed_and_shown() -> None:
    listed = CliRunner().invoke(app, ["losses"]).output
    assert all(record.name in listed for record in whence.list_losses())
    assert "forbidden" in CliRunner().invoke(app, ["losses", "right_reasons"]).output
