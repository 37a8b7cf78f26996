"""What a page holds of attention maps: rounding within the stated error, the largest weights, their shares."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

import whence
from results_by_hand import maps_example, pair_example, picture_example, text_example
from whence.views.content.attention import lead, parts_of, reading, shares
from whence.views.pages import attention_data
from whence.views.pages.attention_data import Plan, packed_pair, plan, sheet

PAIR = ("*", "*")


def numbers(text: str, size: int) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype=f"<u{size}").astype(float)


def unpacked(record: dict[str, Any], own: Plan, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The weights that a script makes of a record, and which of them the page holds."""
    weights = record["m"] * (numbers(record["w"], own.size) / own.top) ** 2
    if "k" not in record:
        return weights.reshape(shape), np.ones(shape, dtype=bool)
    keys = numbers(record["k"], 2).astype(int).reshape(shape[0], -1)
    found, held = np.zeros(shape), np.zeros(shape, dtype=bool)
    np.put_along_axis(found, keys, weights.reshape(keys.shape), 1)
    np.put_along_axis(held, keys, True, 1)
    return found, held


@pytest.mark.parametrize("own", [Plan(2, None), Plan(1, None), Plan(1, 2)], ids=["two bytes", "one byte", "largest"])
def test_weights_are_rounded_within_what_the_page_says(own: Plan) -> None:
    maps = maps_example(text_example(" ".join("abcdefghijklmnop")))
    packed = packed_pair(maps.view(all_layers=True), PAIR, own)
    assert list(packed["maps"]) == [0, 1] and len(packed["maps"][0]) == 3 + 1
    for layer, records in packed["maps"].items():
        for head, record in zip((0, 1, 2, None), records, strict=True):
            exact = maps.matrix(layer, head)
            found, held = unpacked(record, own, exact.shape)
            assert np.abs(found - exact)[held].max() <= exact.max() / own.top
            if "k" in record:
                assert held.sum(1).tolist() == [own.kept] * len(exact)
                assert (np.where(held, exact, np.inf).min(1) >= np.where(held, 0, exact).max(1)).all()
                carried = np.where(held, exact, 0).sum(1) / exact.sum(1)
                said = numbers(record["s"], 1) / 255
                assert (said <= carried + 1e-6).all() and (said > carried - 0.005).all()


def test_the_most_that_fits_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    maps = maps_example(text_example(" ".join("abcdefghijklmnopqrst")))  # 2 layers, 3 heads and their mean
    count = len(maps.input.features)
    cells, rows = 8 * count**2, 8 * count
    expected = {2 * cells: (2, None, None), cells: (1, None, None), 13 * rows: (1, 4, None), 12 * rows: (1, 7, (1,))}
    for budget, found in expected.items():
        monkeypatch.setattr(attention_data, "BUDGET", budget)
        own = plan(maps.view())
        assert (own.size, own.kept, own.only) == found
    monkeypatch.setattr(attention_data, "BUDGET", 1)
    assert plan(maps.view(all_layers=True)) == Plan(1, 2)


def test_shares_are_of_all_weight() -> None:
    maps = maps_example()
    matrix = maps.matrix(0, 1)
    found, count = shares(maps, PAIR, matrix), len(matrix)
    special = maps.input.special
    assert found.special == pytest.approx(matrix[:, special].sum() / count)
    assert found.first == pytest.approx(matrix[:, 0].mean())
    assert found.itself == pytest.approx(np.trace(matrix) / count)
    assert found.before == pytest.approx(sum(matrix[n, n - 1] for n in range(1, count)) / count)
    assert f"{100 * matrix[:, special].sum() / count:.0f} % on special tokens" in reading(maps.view(layer=0, head=1))
    assert shares(maps, PAIR, matrix * 0).first is None
    assert shares(maps_example(picture_example()), PAIR, np.eye(7)).before is None  # patches follow no line


def test_special_tokens_go_with_the_part_before_them() -> None:
    maps = maps_example(pair_example())
    special = [(name, part) for name, part in zip(maps.input.features, parts_of(maps), strict=True) if name[0] == "["]
    assert special == [("[CLS]", "text"), ("[SEP]", "pair")] and set(parts_of(maps)) == {"text", "pair"}


def test_lead_says_what_a_row_sums_to_and_points_to_the_audit() -> None:
    maps = maps_example()
    assert "sum to 1;" in lead(maps.view()) and "whence audit" in lead(maps.view())
    leaky = whence.AttentionMaps({PAIR: maps.weights[PAIR] * 0.5}, maps.input, "leaky")
    assert "sum to less than 1;" in lead(leaky.view())
    assert "where [CLS] looks" in lead(maps_example(picture_example()).view())


def test_thumbnails_are_as_strong_as_their_head() -> None:
    maps = maps_example()
    count = len(maps.input.features)
    times = 64 // count
    pixels = sheet(maps.view(all_layers=True), PAIR)
    side = times * count + 1
    assert pixels.shape == (2 * side, 3 * side, 4)
    own = pixels[side : 2 * side - 1 : times, 2 * side : 3 * side - 1 : times, 3]
    np.testing.assert_allclose(own / 255, maps.matrix(1, 2) / maps.matrix(1, 2).max(), atol=0.003)


def test_odd_weights_are_said() -> None:
    maps = maps_example()
    weights = maps.weights[PAIR].copy()
    weights[0, 0, 0, :2] = np.nan, -0.25
    page = whence.AttentionMaps({PAIR: weights}, maps.input, "odd").to_html(all_layers=True)
    assert "below 0 or not finite are shown as 0" in page
    assert "below 0 or not finite" not in maps.to_html()
