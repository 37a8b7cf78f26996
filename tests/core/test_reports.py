"""Reports: results of any type, or their files, joined on one page; saved results of any type are read."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

import whence
from pages import Page
from results_by_hand import every_result, score_example, scoreboard_example, text_example
from whence.core import display
from whence.core.attention_maps import AttentionSelection
from whence.core.reports import Report, report
from whence.core.results import Result, load_result

RESULTS = every_result()


@dataclass(frozen=True, eq=False)
class Named(Result):
    """A result whose page names its elements."""

    name: str


@display.fragment.register(Named)
def _fragment(found: Named) -> str:
    return (
        f'<h2 id="a">{found.name}</h2><p aria-labelledby="a b">see <a href="#a">it</a></p><i id="b">id=&#34;a&#34;</i>'
    )


@display.title.register(Named)
def _title(found: Named) -> str:
    return f"<{found.name}>"


@pytest.mark.parametrize("name", RESULTS)
def test_a_saved_result_of_any_type_is_read(name: str, tmp_path: Path) -> None:
    result = RESULTS[name]
    result.save(tmp_path / "a.json")
    assert load_result(tmp_path / "a.json") == (result.maps if isinstance(result, AttentionSelection) else result)


def test_what_is_no_saved_result_is_refused_in_one_sentence(tmp_path: Path) -> None:
    score_example().save(tmp_path / "a.json")
    text = (tmp_path / "a.json").read_text()
    files = {
        "is not JSON": text[:50],
        "is other JSON": '{"a": 1}',
        "has format version 99": text.replace('"version": 1', '"version": 99'),
        "is damaged (no type 'Moth' is known here)": text.replace('"$record": "Score"', '"$record": "Moth"'),
        "is damaged": text.replace('"better": "higher"', '"better": "sideways"'),
        "saved, but": text.replace('"$record": "Score"', '"$record": "Target"'),
    }
    for said, content in files.items():
        (tmp_path / "b.json").write_text(content)
        with pytest.raises(ValueError, match=r"^expected a result that was saved, but ") as caught:
            report([tmp_path / "a.json", tmp_path / "b.json"])
        assert "\n" not in str(caught.value) and said in str(caught.value)
    with pytest.raises(
        FileNotFoundError, match=r"^expected a result that was saved, but there is no file '.*none.json'$"
    ):
        report(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("results", "message"),
    [([], "at least one result"), ([3], "not a int"), ([None], "not a NoneType"), ([[score_example()]], "not a list")],
)
def test_a_report_needs_results(results: list, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        report(results)


@pytest.mark.parametrize("title", ["", " ", None, 3])
def test_a_title_is_a_text(title: object) -> None:
    with pytest.raises(ValueError, match="the title of a report is a text"):
        report(score_example(), title)  # type: ignore[arg-type]


def test_a_report_keeps_the_order_and_loads_again(tmp_path: Path) -> None:
    scoreboard_example().save(tmp_path / "board.json")
    found = whence.report([text_example(), str(tmp_path / "board.json"), score_example()], "My model")
    assert [type(result).__name__ for result in found] == ["Attribution", "Scoreboard", "Score"]
    assert len(found) == 3 and found[2] == score_example() and repr(found).startswith("Report(My model: Attribution,")
    found.write(tmp_path / "report.json")
    assert whence.load_result(tmp_path / "report.json") == Report.load(tmp_path / "report.json") == found
    again = whence.report([tmp_path / "report.json", text_example()])
    assert len(again) == 4 and again.title == "Report"
    assert display.endings(Report) == (".json", ".html")
    text = str(found)
    assert text.index("My model") < text.index("2. Scoreboard of sst2") < text.index("3. Score by auac")
    assert str(scoreboard_example()) in text


def test_one_page_holds_every_type_of_result(tmp_path: Path) -> None:
    several = [*RESULTS.values(), *RESULTS.values()]
    page = report(several, "All <of> them").to_html()
    parsed = Page(page)
    assert (
        [tag for tag, _ in parsed.elements].count("style") == [tag for tag, _ in parsed.elements].count("script") == 1
    )
    names = [given["id"] for _, given in parsed.elements if "id" in given]
    assert len(names) == len(set(names)) >= len(several)
    links = [given["href"] for _, given in parsed.elements if "href" in given and given["href"].startswith("#result-")]
    assert (
        links[: len(several)] == [f"#result-{n}" for n in range(1, len(several) + 1)]
        and "All &lt;of&gt; them</h1>" in page
    )
    levels = [int(tag[1]) for tag, _ in parsed.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert levels.count(2) == len(several)  # what is a section of a page by itself stands one step deeper here


def test_names_of_elements_do_not_clash() -> None:
    page = report([Named("one"), Named("two")]).to_html()
    body = page.partition("</nav>")[2].partition("<script>")[0]
    assert '<h3 id="result-1-a">one</h3>' in body and '<h3 id="result-2-a">two</h3>' in body
    assert 'aria-labelledby="result-2-a result-2-b"' in body and 'href="#result-2-a"' in body
    assert "id=&#34;a&#34;" in body and "2. &lt;two&gt;</h2>" in body


def test_the_page_of_a_report_can_stand_in_another() -> None:
    assert display.fragment(report([score_example()])).count("<h2") == 1
