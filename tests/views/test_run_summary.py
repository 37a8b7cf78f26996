"""Runs over data sets and their verification: what is said first, bars, tables, figures, and what is cut."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from pages import Page
from results_by_hand import empty_run, run_example, same_again, verification_example
from whence.core import display
from whence.core.results import load_result
from whence.core.run_summaries import FrequentFeature, RunSummary, Verification, WorkerShare
from whence.views.content import run_summary as runs
from whence.views.content import verification as again
from whence.views.text import duration


def lead(result: Any) -> str:
    """The first paragraph of a result's page."""
    return str(result.to_html()).partition('class="lead">')[2].partition("</p>")[0]


def in_columns(result: Any, width: int) -> str:
    """The result on a terminal of so many columns, without colours."""
    file = io.StringIO()
    Console(file=file, width=width, color_system=None, force_jupyter=False, legacy_windows=False).print(result)
    return file.getvalue()


# --- times ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        *((0.0, "0 s"), (0.8449, "0.845 s"), (59.4, "59.4 s"), (59.7, "1 min"), (60, "1 min"), (200.4, "3 min 20 s")),
        *((3599.6, "1 h"), (7500, "2 h 5 min"), (86_400, "1 d"), (100_000, "1 d 3 h"), (1e9, "11,574 d 1 h")),
        *((float("nan"), "unknown"), (float("inf"), "unknown")),
    ],
)
def test_a_time_is_told_by_its_two_largest_units(seconds: float, said: str) -> None:
    assert duration(seconds) == said


# --- runs -------------------------------------------------------------------------------------------------------------


def test_a_run_says_first_how_far_it_is() -> None:
    said = "1,200 of 2,000 examples done by 2 methods in 3 min 20 s; 4 failed."
    assert runs.reading(run_example(state="stopped")) == f"{said} The run was stopped before its end."
    assert lead(run_example()) == f"{said} The run goes on; about 2 min 14 s left."
    whole = {"state": "finished", "done": 2000, "failed": 0, "seconds": 334.0}
    assert lead(run_example(**whole)) == "2,000 of 2,000 examples done by 2 methods in 5 min 34 s; none failed."
    assert lead(empty_run()) == "None of 2,000 examples is done yet by 2 methods. The run goes on."
    one = run_example(methods=("lrp",), method_seconds=(1.0,), examples=1, done=1, failed=0, state="finished")
    assert lead(one).startswith("1 of 1 example done by 1 method in")


def test_the_time_of_methods_is_shared_out_over_methods_and_examples() -> None:
    first, second = runs.method_times(run_example())
    assert (first.seconds, second.seconds) == (61.27, 318.9) and first.share + second.share == pytest.approx(1)
    assert second.share == pytest.approx(318.9 / 380.17) and second.each == pytest.approx(318.9 / 1200)
    assert second.cells == ("integrated_gradients(steps=50)", "318.900", "83.9%", "265.75")
    assert [row.cells[1:] for row in runs.method_times(empty_run())] == [("0.000", "-", "-")] * 2
    bars = [given["style"] for given in Page(run_example().to_html()).find("i", "bar")][:2]
    assert "width:19.21%" in bars[0] and "width:100.00%" in bars[1]


def test_the_bar_shows_what_is_done_and_what_failed() -> None:
    r = run_example(done=1000, failed=500)
    assert runs.progress(r) == (0.5, 0.25)
    assert str(r).splitlines()[0] == "█" * 7 + "▒" * 8 + "·" * 15 + " 50 %"
    drawn = Page(r.to_html()).find("i")[:2]
    assert [given["style"] for given in drawn] == ["width:25.00%", "width:25.00%"] and drawn[1]["class"] == "against"


def test_a_single_failure_among_many_examples_is_seen_and_nothing_is_whole_before_its_end() -> None:
    r = run_example(examples=10**7, done=10**7 - 1, failed=1)
    bar = str(r).splitlines()[0]
    assert bar.count("▒") == 1 and bar.endswith(" 99 %") and len(bar) == 30 + len(" 99 %")


def test_failures_are_shown_by_reason_the_most_frequent_first() -> None:
    rows, left_out = runs.failure_rows(run_example(), 6)
    assert [count for _, count in rows] == [3, 1] and not left_out
    many = run_example(failures={f"reason {n}": n for n in range(1, 31)})
    rows, left_out = runs.failure_rows(many, 2)
    assert rows == [("reason 30", 30), ("reason 29", 29)]
    assert left_out == f"28 other reasons, in {sum(range(29))} examples, are not shown."
    assert left_out.replace("28", "24").replace("406", "300") in str(many)
    assert "reason 11" in many.to_html() and "10 other reasons, in 55 examples, are not shown." in many.to_html()


def test_workers_are_listed_where_there_are_several() -> None:
    rows, left_out = runs.worker_rows(run_example(), 5)
    assert rows[0] == ("ray 0", "20", "631", "3 min 11 s", "3.30") and not left_out
    alone = run_example(workers=(WorkerShare("here", 38, 1200, 199.0),))
    assert "ray 0" in str(run_example()) and "here" not in str(alone) and "Workers" not in alone.to_html()
    hundreds = run_example(workers=tuple(WorkerShare(f"ray {n}", 0, 0, 0.0) for n in range(101)))
    assert "1 further worker is not shown." in hundreds.to_html() and "85 further workers are not shown." in str(
        hundreds
    )


def test_features_come_by_method_the_largest_share_first_and_red_where_they_speak_against() -> None:
    found = runs.features_by_method(run_example(), 2)
    assert {method: [one.feature for one in own] for method, own in found.items()} == {
        "lrp": ["masterful", "not"],
        "integrated_gradients(steps=50)": ["dull", "not"],
    }
    shuffled = run_example(features=run_example().features[::-1])
    assert [one.feature for one in runs.features_by_method(shuffled, 9)["lrp"]] == [
        "masterful",
        "not",
        "##less",
        "film",
    ]
    bars = [given["style"] for given in Page(run_example().to_html()).find("i", "bar")][2:]
    assert [("208,48,48" in style, "38,110,214" in style) for style in bars] == [
        *((False, True), (True, False), (True, False), (False, True)),
        *((True, False), (True, False), (False, True)),
    ]
    panel = next(axes for axes in run_example().plot().axes if axes.get_title("left") == "lrp")
    reds = [bar.get_facecolor()[0] > 0.5 for bar in panel.patches]
    assert reds == [False, True, True, False] and panel.patches[0].get_width() == 0.412


def test_the_scoreboard_of_a_run_stands_in_its_views() -> None:
    r = run_example()
    assert r.board is not None
    assert "higher is better" in r.to_html() and "paired sign flips" in str(r)
    assert "paired sign flips" not in str(run_example(board=None))


def test_the_table_of_a_run_has_a_row_per_method_with_the_means_of_metrics() -> None:
    r = run_example(methods=("lrp", "integrated_gradients(steps=50)", "erasure"), method_seconds=(1.0, 2.0, 3.0))
    own = display.table(r)
    assert own.columns == ("method", "examples", "failed", "seconds", "seconds per example", "auac", "au_mse(steps=5)")
    assert r.board is not None
    assert own.rows[1][:5] == ("integrated_gradients(steps=50)", 1200, 4, 2.0, 2.0 / 1200)
    assert own.rows[1][5] == r.board.score("integrated_gradients(steps=50)", "auac").value
    assert np.isnan(own.rows[2][5:]).all()  # an experiment has no metrics


def test_versions_hash_and_notes_are_facts() -> None:
    told = dict(runs.facts(run_example()))
    assert told["weights"] == "9f2c61d0a4b7e853…" and told["versions"].startswith("whence 0.1.0, torch 2.8.0")
    assert told["rate"] == "5.99 examples per second" and told["chunks"] == "38 of 63"
    assert {"weights", "versions", "rate", "failed"}.isdisjoint(dict(runs.facts(empty_run())))


@pytest.mark.parametrize("width", [40, 80])
def test_a_run_is_readable_on_a_narrow_terminal(width: int) -> None:
    for result in (run_example(), verification_example()):
        lines = in_columns(result, width).splitlines()
        assert max(map(len, lines)) <= width
        assert any(line.startswith(("ray 1", "1e-9 to 1e-8")) for line in lines)


def test_markup_in_names_is_shown_as_it_is() -> None:
    odd = "[bold]x[/bold]"
    shown = str(run_example(model=odd, features=(FrequentFeature("lrp", odd, 1, 1.0, 1.0),), failures={odd: 1}))
    assert shown.count(odd) == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "lost"},
        {"method_seconds": (1.0,)},
        {"done": -1},
        {"seconds": float("nan")},
        {"method_seconds": (1.0, float("inf"))},
        {"examples": 2**70},
        {"failures": {"x": -1}},
    ],
)
def test_numbers_that_no_run_has_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"state|method_seconds|must lie between 0 and"):
        run_example(**changes)


# --- verification -----------------------------------------------------------------------------------------------------


def test_the_verdict_stands_first() -> None:
    assert lead(same_again()) == "The same to the bit: all 40 rows of 3 chunks are equal when they are computed again."
    near = verification_example(tolerance=1e-3, damaged=())
    assert lead(near) == (
        "The same within 0.001: 25 of 40 rows of 3 chunks are equal to the bit when they are computed again; "
        "the largest relative difference is 0.0001."
    )
    assert lead(verification_example()) == (
        "Different: 2 of 40 rows of 3 chunks differ by more than 2e-05 when they are computed again; "
        "the largest relative difference is 0.0001. 1 shard is not what was written."
    )
    nothing = {"rows": 0, "equal": 0, "differences": np.zeros(0)}
    assert lead(verification_example(**nothing, damaged=())) == "Nothing was computed again, so nothing can be said."
    assert lead(verification_example(**nothing)) == (
        "Different: no row could be computed again. 1 shard is not what was written."
    )


def test_equal_rows_beside_a_damaged_shard_are_no_difference_of_rows() -> None:
    rows = {"equal": 40, "differences": np.zeros(40), "damaged": ("a", "b")}
    said = again.reading(verification_example(**rows))
    assert said.startswith("Different: all 40 rows of 3 chunks are equal") and said.endswith(
        "2 shards are not what was written."
    )


def test_rows_are_counted_by_powers_of_ten_and_each_once() -> None:
    v = verification_example()
    found = again.decades(v)
    assert [(one.name, one.count, one.beyond) for one in found] == [
        *(("0", 25, 0), ("1e-9 to 1e-8", 3, 0), ("1e-8 to 1e-7", 3, 0), ("1e-7 to 1e-6", 3, 0)),
        *(("1e-6 to 1e-5", 3, 0), ("1e-5 to 1e-4", 2, 1), ("1e-4 to 1e-3", 1, 1)),
    ]
    extreme = np.array([0, 1e-300, 5e-13, 0.02, 0.5, 3, 12, 1e308, np.inf, np.nan])
    found = again.decades(verification_example(rows=10, equal=1, differences=extreme))
    assert sum(one.count for one in found) == 10 and sum(one.beyond for one in found) == 7
    named = {one.name: one.count for one in found if one.count}
    assert named == {
        "0": 1,
        "below 1e-12": 2,
        "0.01 to 0.1": 1,
        "0.1 to 1": 1,
        "1 to 10": 1,
        "10 or more": 3,
        "not a number": 1,
    }


def test_a_difference_that_is_no_number_is_said() -> None:
    v = verification_example(rows=2, equal=1, differences=np.array([0.0, np.nan]), damaged=())
    assert v.verdict == "different"
    assert again.reading(v).startswith("Different: 1 of 2 rows") and "difference is not a number" in again.reading(v)


def test_damaged_shards_and_what_is_other_here_are_listed() -> None:
    v = verification_example()
    for text in (*v.damaged, *v.reasons, *v.notes):
        assert text in str(v) and text in v.to_html()


def test_the_histogram_draws_every_row() -> None:
    axes = verification_example().plot().axes[0]
    assert sum(bar.get_height() for bar in axes.patches) == 40
    red = [bar.get_height() for bar in axes.patches if bar.get_facecolor()[0] > 0.5]
    assert sum(red) == 2
    assert "no row" in verification_example(rows=0, equal=0, differences=np.zeros(0)).plot().axes[0].texts[0].get_text()


def test_the_table_of_a_verification_has_a_row_per_comparison() -> None:
    own = display.table(verification_example())
    assert own.columns == ("row", "difference", "within") and len(own.rows) == 40
    assert own.rows[0] == (0, 0.0, True) and own.rows[-1] == (39, pytest.approx(1e-4), False)


@pytest.mark.parametrize(
    "changes",
    [{"differences": np.zeros((40, 1))}, {"differences": -np.ones(40)}, {"differences": np.zeros(3)}, {"equal": -1}],
)
def test_differences_are_one_number_per_row(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"differences|equal"):
        verification_example(**changes)


def test_both_are_read_back(tmp_path: Any) -> None:
    for result in (run_example(), verification_example()):
        result.save(tmp_path / "a.json")
        found = load_result(tmp_path / "a.json")
        assert found == result and isinstance(found, (RunSummary, Verification))
