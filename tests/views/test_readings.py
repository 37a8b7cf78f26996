"""What pages say first, in plain words: true to intervals and tests, also of one example, NaN and ties."""

from dataclasses import replace

import numpy as np
import pytest

from pages import Page
from results_by_hand import (
    arbitration_example,
    audit_example,
    conservation_example,
    grid_example,
    guidance_example,
    names_example,
    picture_example,
    score_example,
    scoreboard_example,
    sensitivity_example,
    shortcuts_example,
    units_example,
)
from whence.core.results import Comparison
from whence.core.scoreboards import Score, Scoreboard
from whence.views.colours import METHODS
from whence.views.content import (
    arbitration,
    audit,
    conservation,
    guidance,
    maximisation,
    name_audit,
    picture_grid,
    score,
)
from whence.views.content import scoreboard as boards
from whence.views.content import sensitivity as concepts


def normal(*shape, scale=1.0, mean=0.0, seed=0):
    """The same random numbers in every test, whichever ran before."""
    return np.random.default_rng(seed).normal(mean, scale, shape)


def lead(result):
    """The first paragraph of a result's page."""
    page = result.to_html()
    Page(page)
    return page.partition('class="lead">')[2].partition("</p>")[0]


def board(values, methods=("gae", "lrp", "random"), metrics=("auac",), better=("higher",), **more):
    """A board of values (method, example) by one metric, or (method, metric, example)."""
    values = np.asarray(values, float)
    values = values[:, None] if values.ndim == 2 else values
    seconds = np.ones((len(methods), values.shape[-1]))
    return Scoreboard(methods[: len(values)], metrics, better, values, seconds[: len(values)], **more)


# --- scoreboards ----------------------------------------------------------------------------------------------------


def test_a_clear_winner_is_told_apart_from_all_others():
    noise = normal(3, 20, scale=0.01)
    said = boards.reading(board(np.array([[0.9], [0.5], [0.1]]) + noise))
    assert said == "By auac on 20 examples, gae is best and told apart from all others."


def test_methods_within_noise_are_said_to_be_so():
    noise = normal(3, 20, scale=0.2)
    found = board(np.array([[0.90], [0.91], [0.1]]) + noise)
    said = boards.reading(found)
    best, other = ("gae", "lrp") if found.best("auac") == "gae" else ("lrp", "gae")
    assert said == (
        f"By auac on 20 examples, {best} is best; {other} is not told apart from it (paired test, p > 0.05)."
    )
    assert "random scores" not in said and found.p_value("random", "auac") < 0.05


def test_what_does_not_beat_chance_is_said_so():
    said = boards.reading(board(normal(3, 12)))
    assert said.endswith("So these examples do not show that any method beats random scores.")


def test_lower_can_be_better():
    noise = normal(2, 20, scale=0.01)
    said = boards.reading(board(np.array([[0.9], [0.5]]) + noise, better=("lower",)))
    assert said == "By auac on 20 examples, lrp is best and told apart from all others."


def test_one_example_allows_no_test():
    said = boards.reading(board([[0.3], [0.9], [0.1]]))
    assert said == "By auac on 1 example, lrp is best; one example allows no test."
    tied = board([[0.9], [0.9], [0.1]])
    assert (
        boards.reading(tied) == "By auac on 1 example, gae and lrp are tied for the best; one example allows no test."
    )
    assert [row.against_best for row in boards.rows(tied, "auac")] == ["best", "tied", ""]


def test_equal_methods_are_tied_on_many_examples_too():
    values = np.tile(normal(8), (2, 1))
    tied = board(values)
    assert [row.star for row in boards.rows(tied, "auac")] == [boards.BEST, boards.BEST]
    assert "lrp is not told apart from it" in boards.reading(tied)


def test_metrics_that_are_not_defined_say_nothing_else():
    assert boards.reading(board(np.full((3, 4), np.nan))) == "auac is not defined on these examples, or not finite."
    some = np.array([[0.9, 0.8, 0.9, 0.8, 0.9, 0.9], [np.nan] * 6, [0.1, 0.2, 0.1, 0.1, 0.2, 0.1]])
    said = boards.reading(board(some))
    assert said.startswith("By auac on 6 examples, gae is best") and said.endswith(
        "; lrp could not be compared with it."
    )
    infinite = np.array([[np.inf, 1.0, 1.0], [0.5, 0.5, 0.5]])
    assert boards.reading(board(infinite)) == "auac is not defined on these examples, or not finite."
    apart = np.array([[0.9, 0.8, np.nan, np.nan], [np.nan, np.nan, 0.2, 0.1]])  # no example is shared
    assert boards.reading(board(apart)) == "By auac on 2 examples, gae is best; lrp could not be compared with it."


def test_one_method_has_a_mean_and_an_interval():
    said = boards.reading(board(np.array([[0.5, 0.6, 0.7]])))
    assert said.startswith("auac of gae is 0.6 on 3 examples; ") and said.endswith("(higher is better).")


def test_many_metrics_are_counted():
    values = np.array([[[1.0] * 9] * 4 + [[0.0] * 9], [[0.0] * 9] * 4 + [[1.0] * 9]]) + normal(2, 5, 9, scale=0.01)
    metrics = tuple(f"metric_{n}" for n in range(5))
    said = boards.reading(board(values, metrics=metrics, better=("higher",) * 5))
    assert said.startswith("By how many of 5 metrics a method is the best or not told apart from it")
    assert said.endswith("on 9 examples: gae 4, lrp 1.")


def test_pages_begin_with_the_reading():
    assert lead(scoreboard_example()) == boards.reading(scoreboard_example()).replace(">", "&gt;")
    assert "method_0 is best and told apart" in lead(scoreboard_example())


# --- scores and arbitrations ----------------------------------------------------------------------------------------


def test_a_score_has_its_interval_or_says_why_not():
    assert score.reading(score_example()) == (
        "auac(fractions=10) is 0.6123 on 2 examples; 0.5 to 0.7 is the 95 % interval of the mean (higher is better). "
        "By itself it says little: set random scores beside it."
    )
    one = Score("auac", 0.5, "lower", np.array([0.5]))
    assert score.reading(one).startswith("auac is 0.5 on 1 example; one example allows no interval (lower is better).")
    assert score.reading(Score("auac", float("nan"), "lower", np.array([np.nan]))) == (
        "auac is not defined on these examples."
    )


def test_candidates_with_equal_values_share_a_rank():
    found = arbitration_example(values=np.array([[[0.7]], [[0.7]], [[0.2]]]), chosen=[[0]])
    first, last = arbitration.groups(found)
    assert (first.rank, first.names, last.rank) == (1, ("gae", "lrp(rules='ah')"), 3)
    said = arbitration.reading(found)
    assert "Tied with gae (0.7): lrp(rules=&#39;ah&#39;); the first given was taken." in lead(found)
    assert said.startswith("rft chose gae of 3 candidates.")
    page = " ".join(" ".join(Page(found.to_html()).texts).split())
    assert "1 tied gae, lrp(rules='ah') 0.7" in page and "3 random 0.2" in page


def test_candidates_that_are_not_told_apart_are_named():
    values = normal(3, 12, 1, scale=0.3) + np.array([0.9, 0.9, -3.0])[:, None, None]
    found = arbitration_example(12, by="set", values=values, chosen=np.zeros((12, 1), int))
    first, second = found.ranking()[0][0], found.ranking()[1][0]
    assert f"{second} is not told apart from {first} (paired test, p > 0.05)." in arbitration.reading(found)
    groups = arbitration.groups(found)
    assert groups[1].p[0] > 0.05 > groups[2].p[0] and np.isnan(groups[0].p[0])


def test_a_choice_by_nothing_means_nothing():
    found = arbitration_example(values=np.full((3, 1, 1), np.nan))
    assert "rft is not defined on these examples, so the choice means nothing." in arbitration.reading(found)
    assert "not defined" in " ".join(Page(found.to_html()).texts)


def test_metrics_that_did_not_choose_judge():
    said = arbitration.reading(arbitration_example(4, metric="auac"))
    assert said.count("Judged by a metric that did not choose:") == 1 and "By au_mse(steps=5) on 4 examples" in said


# --- conservation, audits, names ------------------------------------------------------------------------------------


def test_leaks_are_told_from_rounding():
    c = conservation_example()
    assert conservation.reading(c) == (
        "lrp does not conserve relevance here: of f(x) = 2, 1.4 at the input and 0.3 at biases; 0.3 leaks on the way. "
        "By gradient_x_input, 0.3 leaks."
    )
    whole = replace(c.rows[0], relevance_in=1.7, leak=1e-7)
    said = conservation.reading(replace(c, rows=(whole, *c.rows[1:]), plain=()))
    assert said == "lrp conserves relevance here: 1.7 at the input and 0.3 at biases add up to f(x) = 2."
    broken = replace(c.rows[0], relevance_in=float("nan"))
    assert "nothing can be said" in lead(replace(c, rows=(broken, *c.rows[1:])))
    nothing = replace(c.rows[0], relevance_out=0.0, relevance_in=0.0, bias=0.0, leak=0.0)
    assert "conserves" in conservation.reading(replace(c, rows=(nothing,), output=0.0, plain=()))


def test_an_audit_says_its_verdict_and_what_it_rests_on():
    assert audit.reading(audit_example("explains", "does not", "cannot tell")) == (
        "Attention explains a part of the decisions, as far as these experiments tell on 3 examples of sst2: "
        "test0 says 'explains', test1 says 'does not'; 1 cannot tell."
    )
    assert audit.reading(audit_example("cannot tell")).startswith("No experiment can tell on 3 examples of sst2")
    assert audit.reading(audit_example("does not", examples=1)).endswith("One example is no more than an anecdote.")
    assert lead(audit_example("does not", examples=1)).startswith("Attention does not explain the decisions")


def test_names_that_move_nothing_beyond_chance_are_said_so():
    found = names_example()
    assert name_audit.reading(found).endswith("groups that differ from the others beyond chance: female (gender).")
    none = replace(found, tests=found.tests[:1])
    assert name_audit.reading(none).endswith("no group of names differs from the others beyond chance at 0.05.")
    broken = replace(found, outputs=np.full((2, 4), np.nan))
    assert name_audit.reading(broken).startswith("Some outputs are not finite")


# --- concepts, units, grids -----------------------------------------------------------------------------------------


def test_concepts_speak_where_their_tests_say_so():
    said = concepts.reading(sensitivity_example())
    assert said == (
        "striped speaks for the logit of 'tiger' at layers 0 and 1. "
        "Of red nothing is said, since the probes cannot tell it apart."
    )
    assert "speaks against" in concepts.reading(sensitivity_example(derivative=-1.0))
    assert concepts.reading(sensitivity_example(p=0.5)).startswith(
        "No concept speaks for or against the logit of 'tiger' beyond chance. striped: no more than random concepts do."
    )
    assert lead(sensitivity_example()).startswith("striped speaks for")


def test_too_few_random_concepts_are_no_finding():
    said = concepts.reading(sensitivity_example(p=1.0, randoms=5))
    assert said.startswith("With 5 random concepts, none of 4 tests could be significant.") and "no more" not in said


def test_what_was_made_is_set_beside_its_start_and_the_examples():
    assert maximisation.reading(units_example([1.0], [9.0], [8.0], [[4.0, 2.0]])) == (
        "The text that was made raises the logit of 'class 0': 1 at the start, 8 now. "
        "The strongest of the given examples reaches 4."
    )
    assert maximisation.reading(units_example([1.0], [9.0], [2.0])).endswith(
        "Turning what was searched into a text lost more than half of the gain of logit of 'class 0'."
    )
    assert "does not raise" in maximisation.reading(units_example([1.0], [0.5], [0.5]))
    two = units_example([1.0, 1.0], [9.0, 9.0], [8.0, 8.0], [[4.0, 2.0], [9.0, 2.0]])
    assert maximisation.reading(two) == (
        "2 of 2 texts that were made excite their unit more than the start of the search. "
        "1 of 2 excite it more than any of the given examples."
    )


def test_searches_that_are_not_finite_have_pages():
    broken = units_example([1.0], [np.nan], [np.nan])
    assert lead(broken) == "The targets are not finite, so nothing can be said of what was made."


def test_a_grid_tells_on_how_many_pictures_methods_agree():
    a = replace(picture_example(), scores=np.array([0, 1, 0, 0, 0, 0, 0.0]))
    other = replace(a, method="attention", scores=np.array([0, 0, 0, 2, 0, 0, 0.0]))
    same, apart = Comparison((a, replace(a, method="attention"))), Comparison((a, other))
    said = picture_grid.reading(grid_example(comparisons=(same, apart)))
    assert "all 2 methods give the highest score to the same patch on 1 of 2 pictures." in said
    assert "to the same patch here." in picture_grid.reading(grid_example(comparisons=(same,), names=()))
    assert "to different patches." in picture_grid.reading(grid_example(comparisons=(apart,), names=()))
    flat = Comparison(
        tuple(replace(one, scores=np.full(7, value)) for one, value in zip(same, (0.0, np.nan), strict=True))
    )
    assert "on none of 2 pictures" in picture_grid.reading(grid_example(comparisons=(flat, apart)))
    alone = picture_grid.reading(grid_example(comparisons=(Comparison((a,)),), names=()))
    assert alone == "Colour lies the denser over a photo the stronger a patch's score is."


@pytest.mark.parametrize(
    ("result", "title"),
    [
        (audit_example("partly"), "Is attention an explanation of sst2&#39;s decisions?"),
        (guidance_example(), "tiny trained with rationale"),
        (sensitivity_example(), "Concepts and the logit of &#39;tiger&#39;"),
        (units_example([1.0], [9.0], [8.0]), "What excites logit of &#39;class 0&#39; of tiny"),
        (scoreboard_example(), "Scoreboard of sst2"),
        (arbitration_example(), "Arbitration among 3 candidates"),
        (conservation_example(), "Conservation of relevance by lrp in tiny"),
        (score_example(), "Score by auac(fractions=10)"),
        (names_example(), "Does a name move the decision of sst2?"),
        (shortcuts_example(), "Which words act as shortcuts in sst2?"),
        (grid_example(), "2 pictures by 2 methods"),
    ],
)
def test_titles_say_what_a_page_is_about(result, title):
    page = result.to_html()
    assert f">{title}</h1>" in page and f"<title>{title} · whence</title>" in page and page.count("<h1") == 1


def test_guidance_says_what_became_better_and_worse() -> None:
    said = guidance.reading(guidance_example())
    assert said.startswith("Against training on labels alone, over 2 seeds: better plausibility of attention; worse ")
    assert said.endswith("Accuracy changes by +0.0 points [+0.0, +0.0], to 90.0%.")
    assert "worse calibration error and plausibility of attention." in guidance.reading(guidance_example(gain=-0.2))
    alone = guidance.reading(guidance_example(("given", "guided"), 0.0))
    assert alone.startswith("Against the model as it was given, over 2 seeds: worse calibration error.")
    verdicts = [row.verdict for row in guidance.rows(guidance_example())]
    assert verdicts == ["no clear difference", "worse", "better", "cannot tell"]


def test_the_curves_of_a_guidance_have_one_colour_for_an_arm() -> None:
    page = guidance_example().to_html()  # the loss on labels of both arms, and the rationale loss of the guided one
    plain, guided = METHODS[:2]
    assert page.count(guided) == 2 * page.count(plain) > 0


@pytest.mark.parametrize("name", ["at", "test"])
def test_concepts_that_were_read_or_tested_in_no_known_way_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be one of .*, got 'a masterful film'"):
        replace(sensitivity_example(), **{name: "a masterful film"})
