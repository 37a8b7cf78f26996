"""The public interface: registry, targets, `explain`, `compare`, generated text, places of gradients, patches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import whence
from families import FAMILIES, LABELS, TEXTS, family, fresh, plain_inputs, plain_logits, subject_of
from whence.core import registry, specs
from whence.core.inputs import Target
from whence.core.results import Attribution
from whence.model.subject import Subject


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(count)


@cache
def subject(name: str) -> Subject:
    return whence.wrap(family(name).model, family(name).processor, **family(name).kwargs)


def close(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Within the tolerance times the largest number, if that is above one."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance * max(1.0, np.abs(expected).max())


@pytest.fixture
def own_method() -> Iterator[Callable[..., str]]:
    """Registers a method of the test's own, and forgets it afterwards."""
    names: list[str] = []

    def register(function: Callable[..., Any], **facts: Any) -> str:
        whence.method(**{"family": "baseline", **facts})(function)
        names.append(function.__name__)
        return function.__name__

    yield register
    for name in names:
        registry.unregister("method", name)


# --- Registry ---------------------------------------------------------------------------------------------------------

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("gradient", {}),
    ("gradient", {"reduce": "sum", "at": 1}),
    ("gradient", {"at": -1}),
    ("attention", {"layer": [0, 1], "heads": [3], "read": "received"}),
    ("attention", {"layer": list(range(60))}),
    ("integrated_gradients", {"steps": 20, "tolerance": 1e-3, "baseline": "zero", "rule": "midpoint", "at": "pixels"}),
]


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_a_spec_reads_back_as_what_it_was_written_from(name: str, options: dict[str, Any]) -> None:
    spec = registry.find("method", name).spec(options)
    assert specs.parse(spec) == (name, options)
    record, again = registry.resolve("method", spec)
    assert (record.name, again, record.spec(again)) == (name, options, spec)


def test_a_spec_leaves_out_what_is_the_default() -> None:
    record = registry.find("method", "integrated_gradients")
    assert record.spec({"steps": None, "tolerance": 0.01, "rule": "left"}) == "integrated_gradients(rule='left')"
    assert record.spec() == "integrated_gradients"


def test_spaces_and_quotes_in_a_spec(own_method: Callable[..., str]) -> None:
    def own(subject: Subject, batch: Any, target: Any, *, text: str = "", sizes: list[int] | None = None) -> None:
        """A method."""

    own_method(own)
    assert specs.parse(" own ( sizes = [1,2] ) ") == ("own", {"sizes": [1, 2]})
    for text in ("it's", 'a "b"', "a, b=(c)", "new\nline", "שלום"):
        record, options = registry.resolve("method", "own", {"text": text})
        assert specs.parse(record.spec(options)) == ("own", {"text": text})


def test_the_result_carries_the_spec_it_ran_with() -> None:
    a = whence.explain(subject("bert"), "a film", method="gradient(at='word')", reduce="l1")
    assert specs.parse(a.method) == ("gradient", {"at": "word", "reduce": "l1"})
    again = whence.explain(subject("bert"), "a film", method=a.method)
    assert again == a
    assert whence.explain(subject("bert"), "a film", method="gradient", at="embeddings").method == "gradient"


def test_the_default_method_is_named() -> None:
    """Short inputs are explained by hiding, beyond 48 features by gradients; one method serves all of a list."""
    long = "a film " * 30
    for raws, method in (
        (["a film"], "leave_one_out"),
        ([long], "integrated_gradients"),
        (["a film", long], "integrated_gradients"),
    ):
        for raw, a in zip(raws, whence.explain(subject("bert"), raws), strict=True):
            assert a.method == method and any(f"{method} was used" in note for note in a.notes)
            named = whence.explain(subject("bert"), raw, method=method)
            np.testing.assert_allclose(a.scores, named.scores, atol=1e-5)
            assert not any("was used" in note for note in named.notes)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_an_answer_by_default(name: str) -> None:
    made = family(name)
    a = whence.explain(subject_of(name), made.inputs[1])
    picture_alone = made.task == "image-classification"
    of_pictures = "integrated_gradients" if made.windows else "gae"
    assert a.method == (of_pictures if picture_alone else "leave_one_out")
    assert a.signed is (a.method != "gae") and np.abs(a.scores).max() > 0


def test_a_name_is_taken_once() -> None:
    known = registry.find("method", "gradient")

    def gradient(subject: Subject, batch: Any, target: Any) -> None:
        """Another method of that name."""

    with pytest.raises(ValueError, match=r"'gradient' is registered already, by whence\.methods\.gradient"):
        whence.method(family="gradient")(gradient)
    assert registry.find("method", "gradient") is known


def test_the_same_module_may_register_a_method_again(own_method: Callable[..., str]) -> None:
    def own(subject: Subject, batch: Any, target: Any, *, old: int = 1) -> None:
        """The first version."""

    own_method(own)

    def own(subject: Subject, batch: Any, target: Any, *, new: int = 1) -> None:  # type: ignore[no-redef]
        """The second version."""

    own_method(own)
    assert list(registry.find("method", "own").options) == ["new"]


def test_a_method_says_what_it_is() -> None:
    def silent(subject: Subject, batch: Any, target: Any) -> None: ...

    def demanding(subject: Subject, batch: Any, target: Any, *, size: int) -> None:
        """Needs a size."""

    with pytest.raises(ValueError, match="needs a docstring"):
        whence.method(family="baseline")(silent)
    with pytest.raises(ValueError, match="'size' needs a default"):
        whence.method(family="baseline")(demanding)
    with pytest.raises(ValueError, match="'higher' or 'lower'"):
        whence.metric(better="larger")


def test_options_are_checked_by_their_annotation(own_method: Callable[..., str]) -> None:
    def own(
        subject: Subject,
        batch: Any,
        target: Any,
        *,
        count: int = 1,
        share: float = 0.5,
        flag: bool = False,
        sizes: list[int] | None = None,
        function: Callable[[int], int] | None = None,
        anything: Any = None,
    ) -> None:
        """A method."""

    record = registry.find("method", own_method(own))
    good: dict[str, list[Any]] = {
        "count": [0, -3],
        "share": [0.1, 2],
        "flag": [True],
        "sizes": [[1, 2], (3,), None],
        "function": [abs, None],
        "anything": [object()],
    }
    bad: dict[str, list[Any]] = {
        "count": [1.0, True, "1", None],
        "share": ["a", None, True],
        "flag": [1, "yes"],
        "sizes": [[1.5], 3, ["a"]],
        "function": [3],
    }
    for name, values in good.items():
        for value in values:
            assert registry.validate(record, {name: value}) == {
                name: list(value) if value == (3,) else value
            }  # a list is taken
    for name, values in bad.items():
        for value in values:
            with pytest.raises(ValueError, match=f"own: the option '{name}' takes "):
                registry.validate(record, {name: value})


def test_every_method_is_listed_with_its_record() -> None:
    records = {record.name: record for record in whence.list_methods()}
    assert {"random", "attention", "gradient", "gradient_x_input", "integrated_gradients"} <= set(records)
    for record in records.values():
        assert record.kind == "method" and record.family and record.summary.endswith(".")
        assert all(option.takes for option in record.options.values())
    assert records["integrated_gradients"].complete and not records["gradient"].signed


def test_an_own_method_is_explained_with(own_method: Callable[..., str]) -> None:
    def lengths(subject: Subject, batch: Any, target: Any, *, scale: float = 1.0) -> Tensor:
        """The length of each token, and nothing of the model."""
        scores = torch.zeros(batch.mask.shape)
        for row, item in enumerate(batch.inputs):
            scores[row, batch.mask[row]] = scale * torch.tensor([float(len(name)) for name in item.features])
        return scores

    own_method(lengths)
    results = whence.explain(subject("bert"), TEXTS, method="lengths(scale=2)")
    for a in results:
        assert a.scores.tolist() == [2.0 * len(name) for name in a.features]
        assert a.method == "lengths(scale=2)" and a.residual == pytest.approx(a.output - a.scores.sum())


# --- Targets ----------------------------------------------------------------------------------------------------------


def plain(name: str, raw: Any) -> Tensor:
    """The logits of the plain model that a decision is read from, in double precision."""
    logits = plain_logits(family(name), raw).double()
    return logits[0, -1] if logits.ndim == 3 else logits[0]


def first_two(outputs: Any) -> Tensor:
    return outputs.logits[:, :2]


def first_one(outputs: Any) -> Tensor:
    return outputs.logits[:, 0]


def shown(output: Callable[..., Tensor], *labels: str) -> Subject:
    return whence.wrap(family("bert").model, family("bert").processor, output=output, labels=labels)


def the_second(logits: Tensor, batch: Any) -> Tensor:
    return logits[:, 1]


@pytest.mark.parametrize("chosen", range(3))
def test_every_kind_of_target_is_its_formula(chosen: int) -> None:
    z, label = plain("bert", TEXTS[0]), LABELS[chosen]
    p = z.softmax(0)
    others = torch.cat([z[:chosen], z[chosen + 1 :]])
    expected = {
        label: z[chosen],
        f"logit({label!r})": z[chosen],
        f"probability({label!r})": p[chosen],
        f"log_probability({chosen})": p[chosen].log(),
        f"log_odds({label!r})": (p[chosen] / (1 - p[chosen])).log(),
        f"margin({label!r})": z[chosen] - others.max(),
        f"contrast({label!r}, 'neutral')": z[chosen] - z[1],
    }
    for target, value in expected.items():
        a = whence.explain(subject("bert"), TEXTS[0], target=target)
        close(a.output, value.item())
        assert isinstance(a.target, Target) and (a.target.index, a.target.name) == (chosen, label)
        assert not a.target.predicted and not any("no target" in note for note in a.notes)


def test_a_class_is_named_by_label_index_or_target() -> None:
    named = whence.explain(subject("bert"), TEXTS[0], target="positive")
    for target in (2, np.int64(2), Target("logit", 2, "positive"), "logit(2)"):
        assert whence.explain(subject("bert"), TEXTS[0], target=target) == named


def scores_of(target: Any, made: Subject | None = None) -> np.ndarray:
    return whence.explain(made or subject("bert"), TEXTS[0], "gradient_x_input", target).scores


def test_scores_follow_the_formula_of_the_target() -> None:
    z = plain("bert", TEXTS[0])
    second = int(z.argsort()[-2])
    close(scores_of("contrast(0, 2)"), scores_of(0) - scores_of(2))
    close(scores_of("margin"), scores_of(int(z.argmax())) - scores_of(second))
    p = z.softmax(0)[2].item()
    close(scores_of("probability(2)"), p * scores_of("log_probability(2)"))
    close(scores_of("log_odds(2)"), scores_of("log_probability(2)") / (1 - p))


def test_log_odds_of_two_classes_is_the_difference_of_logits() -> None:
    z = plain("bert", TEXTS[0])
    two = shown(first_two, "no", "yes")
    close(whence.explain(two, TEXTS[0], target="log_odds('yes')").output, (z[1] - z[0]).item())
    close(scores_of("log_odds('yes')", two), scores_of("contrast('yes', 'no')", two))
    close(scores_of("log_odds('no')", two), -scores_of("log_odds('yes')", two))


def test_a_single_output_is_a_logit() -> None:
    z = plain("bert", TEXTS[0])[0]
    one = shown(first_one, "score")
    sigmoid = z.sigmoid()
    for target, value in {
        None: z,
        "score": z,
        0: z,
        "probability": sigmoid,
        "log_probability": sigmoid.log(),
        "log_odds": z,
    }.items():
        close(whence.explain(one, TEXTS[0], target=target).output, value.item())
    close(scores_of("log_odds", one), scores_of("negative"))


def test_a_label_comes_before_a_kind_and_before_an_index() -> None:
    made = whence.wrap(family("bert").model, family("bert").processor, labels=["probability", "margin(0)", "0"])
    for number, label in enumerate(["probability", "margin(0)", "0"]):
        target = whence.explain(made, "a film", target=label).target
        assert target == Target("logit", number, label)
    assert whence.explain(made, "a film", target=0).target == Target("logit", 0, "probability")
    assert whence.explain(made, "a film", target="probability('0')").target == Target("probability", 2, "0")


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit"])
def test_without_a_target_the_prediction_is_explained_and_noted(name: str) -> None:
    raw = family(name).inputs[0]
    best = int(plain(name, raw).argmax())
    a = whence.explain(subject(name), raw)
    assert a.target == Target("logit", best, subject(name).name_of(best), predicted=True)
    assert any("no target was given" in note and repr(subject(name).name_of(best)) in note for note in a.notes)
    asked = whence.explain(subject(name), raw, target=best)
    assert np.array_equal(asked.scores, a.scores)


@pytest.mark.parametrize("kind", ["probability", "log_probability", "log_odds", "margin", "logit"])
def test_a_kind_alone_is_that_of_the_prediction(kind: str) -> None:
    best = int(plain("bert", TEXTS[0]).argmax())
    a = whence.explain(subject("bert"), TEXTS[0], target=kind)
    asked = whence.explain(subject("bert"), TEXTS[0], target=f"{kind}({best})")
    assert a.target == Target(kind, best, LABELS[best], predicted=True)
    assert (a.output, a.scores.tolist()) == (asked.output, asked.scores.tolist())


def test_a_function_is_a_target() -> None:
    def difference(logits: Tensor, batch: Any) -> Tensor:
        return logits[:, 0] - logits[:, 2]

    a = whence.explain(subject("bert"), TEXTS[0], "gradient_x_input", difference)
    assert isinstance(a.target, Target) and (a.target.kind, str(a.target)) == ("function", "difference")
    close(a.scores, scores_of("contrast(0, 2)"))
    # the default method runs on the eager path and gradient_x_input on the fused one, which round differently
    usual = whence.explain(subject("bert"), TEXTS[0], target="contrast(0, 2)")
    assert a.output == pytest.approx(usual.output, rel=1e-4)


def test_a_list_of_targets_has_its_own_for_every_input() -> None:
    targets = ["positive", "probability('neutral')", the_second, None]
    together = whence.explain(subject("bert"), TEXTS, target=targets)
    for a, text, target in zip(together, TEXTS, targets, strict=True):
        alone = whence.explain(subject("bert"), text, target=target)
        assert (a.input.raw, a.target) == (text, alone.target)
        close(a.output, alone.output)
        close(a.scores, alone.scores)


def test_the_token_of_a_target_is_named_by_its_text() -> None:
    made, prompt = subject("gpt2"), "the old man was singing"
    z = plain("gpt2", prompt)
    (token, _), (other, _) = made.pieces(" the")[0], made.pieces(" film")[0]
    a = whence.explain(made, prompt, target=" the")
    assert a.target == Target("logit", token, " the")
    close(a.output, z[token].item())
    close(whence.explain(made, prompt, target="probability(' the')").output, z.softmax(0)[token].item())
    contrast = whence.explain(made, prompt, target="contrast(' the', ' film')")
    close(contrast.output, (z[token] - z[other]).item())
    assert str(contrast.target) == "logit of ' the' minus logit of ' film'"


@pytest.mark.parametrize("name", ["bert", "gpt2-classifier", "vit", "clip", "torch-encoder", "from-scratch"])
def test_the_output_is_the_plain_models(name: str) -> None:
    for raw in family(name).inputs[:2]:
        z = plain(name, raw)
        close(whence.explain(subject(name), raw, method="gradient", target=0).output, z[0].item())
        close(whence.explain(subject(name), raw, method="random").output, z.max().item())


# --- Lists and seeds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [None, 1, 3])
@pytest.mark.parametrize("name", ["bert", "from-scratch"])
def test_results_come_in_the_order_of_the_inputs(name: str, batch_size: int | None) -> None:
    texts = [TEXTS[1], TEXTS[2], "a", TEXTS[0], "two dogs", TEXTS[1], TEXTS[3]]
    lengths = [len(subject(name).encode(text).features) for text in texts]
    assert lengths not in (sorted(lengths), sorted(lengths, reverse=True))  # or the order would be kept by chance
    results = whence.explain(subject(name), texts, batch_size=batch_size)
    assert [a.input.raw for a in results] == texts
    for a in results:
        close(a.scores, whence.explain(subject(name), a.input.raw).scores, 1e-4)


def test_the_same_input_twice_gives_the_same_scores() -> None:
    first, _, last = whence.explain(subject("bert"), [TEXTS[0], TEXTS[2], TEXTS[0]], method="random")
    assert np.array_equal(first.scores, last.scores)


def test_a_seed_chooses_the_random_scores() -> None:
    def drawn(raw: Any, **options: Any) -> Any:
        return whence.explain(subject("bert"), raw, method="random", **options)

    plain = drawn(TEXTS[0])
    assert np.array_equal(plain.scores, drawn(TEXTS[0], seed=0).scores)  # 0 is the default
    assert not np.array_equal(plain.scores, drawn(TEXTS[0], seed=1).scores)
    assert np.array_equal(drawn(TEXTS[0], seed=7).scores, drawn(TEXTS[0], seed=7).scores)
    assert not np.array_equal(plain.scores[:4], drawn(TEXTS[2]).scores[:4])  # other inputs, other numbers
    for batch_size in (1, 2, None):
        among = drawn([TEXTS[2], TEXTS[1], TEXTS[0]], batch_size=batch_size)[2]
        assert np.array_equal(plain.scores, among.scores)
    assert ((plain.scores >= 0) & (plain.scores < 1)).all()


def test_explaining_leaves_the_random_states_alone() -> None:
    torch.manual_seed(3)
    np.random.seed(3)
    expected = torch.rand(2).tolist(), np.random.rand(2).tolist()
    torch.manual_seed(3)
    np.random.seed(3)
    whence.explain(subject("bert"), TEXTS, method="random", seed=5)
    assert (torch.rand(2).tolist(), np.random.rand(2).tolist()) == expected


# --- Compare ----------------------------------------------------------------------------------------------------------


class Passes:
    """Counts the forward passes of a model."""

    def __init__(self, model: nn.Module) -> None:
        self.count = 0
        model.register_forward_pre_hook(self._add)

    def _add(self, module: nn.Module, args: Any) -> None:
        self.count += 1

    def of(self, call: Callable[[], Any]) -> int:
        call()  # the first time, the model is probed
        self.count = 0
        call()
        return self.count


SHARED = ["gradient", "gradient_x_input", "attention"]


@pytest.mark.parametrize("name", ["bert", "vit", "gpt2", "clip"])
def test_methods_share_a_pass(name: str) -> None:
    made = fresh(name)
    lent, passes = whence.wrap(made.model, made.processor), Passes(made.model)
    raw = made.inputs[0]
    sinks = int(name == "gpt2")  # one more pass looks for the attention sinks of a causal model
    assert passes.of(lambda: whence.compare(lent, raw, methods=SHARED)) == 1 + sinks
    assert passes.of(lambda: whence.compare(lent, raw, methods=[*SHARED, "random"])) == 1 + sinks
    assert passes.of(lambda: whence.compare(lent, raw, methods=["gradient(at='word')", "gradient(at=1)"])) == 1 + sinks
    for method in (*SHARED, "random"):
        assert passes.of(lambda method=method: whence.explain(lent, raw, method=method)) == 1 + sinks
    path = "integrated_gradients(steps=4)"  # its own passes: the baseline, and the four points together
    assert passes.of(lambda: whence.explain(lent, raw, method=path)) == 3 + sinks
    assert passes.of(lambda: whence.compare(lent, raw, methods=[*SHARED, path])) == 3 + sinks


def test_a_batch_shares_a_pass() -> None:
    made = fresh("bert")
    lent, passes = whence.wrap(made.model, made.processor), Passes(made.model)
    assert passes.of(lambda: whence.compare(lent, made.inputs, methods=SHARED, batch_size=4)) == 1
    assert passes.of(lambda: whence.compare(lent, made.inputs, methods=SHARED, batch_size=2)) == 2
    # of 44, 23, 20 and 5 tokens the last would be padded more than it is worth, once there are tokens enough
    assert passes.of(lambda: whence.compare(lent, made.inputs, methods=SHARED)) == 2


METHODS = [*SHARED, "gradient(at='word')", "gradient_x_input(at=1)", "integrated_gradients(steps=4)", "random"]


@pytest.mark.parametrize("name", ["bert", "vit", "llama", "t5", "clip", "torch-encoder"])
def test_shared_passes_give_the_numbers_of_separate_ones(name: str) -> None:
    raw = family(name).inputs[0]
    comparison = whence.compare(subject(name), raw, methods=METHODS, seed=4)
    assert [a.method for a in comparison] == METHODS
    for a in comparison:
        alone = whence.explain(subject(name), raw, method=a.method, seed=4)
        close(a.scores, alone.scores)
        close(a.output, alone.output)
        assert (a.target, a.notes, a.input) == (alone.target, alone.notes, alone.input)


def test_a_comparison_of_a_list_is_a_list() -> None:
    comparisons = whence.compare(subject("bert"), TEXTS[:3], methods=["gradient", "random"], target=["positive", 0, 1])
    assert [comparison[0].input.raw for comparison in comparisons] == TEXTS[:3]
    assert [comparison["random"].target.index for comparison in comparisons] == [2, 0, 1]
    for comparison in comparisons:
        assert comparison[0].target == comparison[1].target and str(comparison)


def test_generated_text_is_compared() -> None:
    raw = {"prompt": "the old man was", "continuation": " singing quietly"}
    for made, text in ((subject("gpt2"), raw), (subject("t5"), "the house was warm")):
        comparison = whence.compare(made, text, methods=["gradient_x_input", "attention"], target="log_probability")
        first, second = comparison
        assert first.axes == second.axes == ("generated", "feature")
        assert first.target == second.target and np.array_equal(first.visible, second.visible)
        assert second.residual is None and str(comparison) and comparison.to_html()


# --- Generated text ---------------------------------------------------------------------------------------------------

PROMPTED = {"prompt": "the old man was", "continuation": " was the house"}  # every word is one token
TRANSLATED = {"source": "the house was warm", "output": "the weather was cold"}
GENERATED = {"gpt2": PROMPTED, "llama": PROMPTED, "t5": TRANSLATED, "bart": TRANSLATED}


@cache
def generated(name: str, method: str = "gradient_x_input") -> Attribution:
    return whence.explain(subject(name), GENERATED[name], method=method)


def tokens(a: Attribution) -> list[int]:
    """The id of every feature."""
    ids = a.input.tensors["input_ids"].tolist()
    return [*ids, *a.input.tensors["decoder_input_ids"].tolist()] if "decoder_input_ids" in a.input.tensors else ids


def predicting(name: str, a: Attribution) -> Tensor:
    """The plain model's logits from which each generated token was chosen: (generated, token)."""
    tensors = {key: torch.from_numpy(array)[None] for key, array in a.input.tensors.items()}
    with torch.no_grad():
        logits = family(name).model(**tensors).logits[0].double()
    return logits[-len(a.input.generated) - 1 : -1]


@pytest.mark.parametrize("name", GENERATED)
def test_a_row_sees_what_came_before(name: str) -> None:
    a = generated(name)
    rows = a.input.generated
    assert a.axes == ("generated", "feature") and a.scores.shape == (len(rows), len(a.features))
    assert rows == tuple(range(len(a.features) - len(rows), len(a.features)))
    start = a.streams.index("target")
    assert set(a.streams[:start]) == {"source"} and set(a.streams[start:]) == {"target"}
    assert rows[0] == start + (family(name).task == "seq2seq-lm")  # where decoding starts with a token of its own
    for row, feature in enumerate(rows):
        assert a.visible[row].tolist() == [number < feature for number in range(len(a.features))]
        assert (a.scores[row, feature:] == 0).all() and (a.scores[row, :feature] != 0).any()


@pytest.mark.parametrize("name", GENERATED)
def test_every_row_has_its_target_and_output(name: str) -> None:
    a = generated(name)
    ids = [tokens(a)[feature] for feature in a.input.generated]
    names = [a.features[feature] for feature in a.input.generated]
    assert a.target == tuple(Target("logit", token, text) for token, text in zip(ids, names, strict=True))
    logits = predicting(name, a)
    close(a.output, [row[token].item() for row, token in zip(logits, ids, strict=True)])
    close(a.residual, a.output - a.scores.sum(-1))
    assert a.base.tolist() == [0.0] * len(ids)
    likely = whence.explain(subject(name), GENERATED[name], target="log_probability")
    close(likely.output, [row.log_softmax(0)[token].item() for row, token in zip(logits, ids, strict=True)])


@pytest.mark.parametrize("name", GENERATED)
def test_completeness_holds_for_every_row(name: str) -> None:
    a = generated(name, "integrated_gradients(steps=4)")
    close(a.residual, a.output - a.base - a.scores.sum(-1))
    rough = np.abs(a.residual).max()
    fine = np.abs(generated(name, "integrated_gradients(steps=48)").residual).max()
    assert fine < 0.2 * rough and len(set(a.base.tolist())) == len(a.base)


NEXT = ["gradient", "gradient_x_input", "attention", "integrated_gradients(steps=4)"]


@pytest.mark.parametrize("method", NEXT)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_row_is_the_next_token_of_the_cut_prompt(name: str, method: str) -> None:
    a = generated(name, method)
    words = PROMPTED["continuation"].split()
    for row, (feature, target) in enumerate(zip(a.input.generated, a.target, strict=True)):  # type: ignore[arg-type]
        prompt = " ".join([PROMPTED["prompt"], *words[:row]])
        alone = whence.explain(subject(name), prompt, method=method, target=target.index)
        assert tokens(alone) == tokens(a)[:feature]
        close(alone.scores, a.scores[row, :feature])
        close(alone.output, a.output[row])
        assert alone.target == target


@pytest.mark.parametrize("method", NEXT)
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_a_row_does_not_depend_on_what_comes_later(name: str, method: str) -> None:
    a = generated(name, method)
    shorter = whence.explain(subject(name), {**TRANSLATED, "output": "the weather"}, method=method)
    rows, width = len(shorter.scores) - 1, len(shorter.features) - 1  # the last row is the closing token's
    assert rows >= 2 and tokens(shorter)[:width] == tokens(a)[:width]
    close(shorter.scores[:rows, :width], a.scores[:rows, :width])
    close(shorter.output[:rows], a.output[:rows])


@pytest.mark.parametrize("name", ["t5", "bart", "marian"])
def test_a_source_is_decoded_greedily(name: str) -> None:
    raw = family(name).inputs[0]
    a = whence.explain(subject(name), raw)
    with torch.no_grad():
        inputs = family(name).processor(raw, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        ids = family(name).model.generate(**inputs, do_sample=False)[0].tolist()  # type: ignore[operator]
    assert [target.index for target in a.target] == ids[1:]  # type: ignore[union-attr]
    close(a.output, predicting(name, a).gather(1, torch.tensor(ids[1:])[:, None])[:, 0])


def test_prompts_and_continuations_share_a_list() -> None:
    raws = [PROMPTED, "two dogs are playing", ("the old man", " was"), PROMPTED["prompt"]]
    targets = ["probability", " the", None, None]
    results = whence.explain(subject("gpt2"), raws, target=targets)
    assert [a.scores.ndim for a in results] == [2, 1, 2, 1]
    for a, raw, target in zip(results, raws, targets, strict=True):
        alone = whence.explain(subject("gpt2"), raw, target=target)
        close(a.scores, alone.scores, 1e-4)
        assert a.target == alone.target


# --- Where a gradient is taken ----------------------------------------------------------------------------------------


def hidden(model: Any, block: nn.Module, tensors: dict[str, Tensor], target: int) -> tuple[Tensor, Tensor]:
    """The state that a block returns, and the gradient of a logit there, by a plain hook."""
    found: list[Tensor] = []

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        found.append(output[0] if isinstance(output, tuple) else output)
        found[0].retain_grad()

    handle = block.register_forward_hook(keep)
    logits = model(**tensors).logits
    (logits[0, -1, target] if logits.ndim == 3 else logits[0, target]).backward()
    handle.remove()
    assert found[0].grad is not None
    return found[0].detach()[0], found[0].grad[0]


@pytest.mark.parametrize(
    ("name", "at", "block"),
    [
        ("bert", "word", "bert.embeddings.word_embeddings"),
        ("bert", "embeddings", "bert.embeddings"),
        ("bert", 0, "bert.embeddings"),
        ("bert", 1, "bert.encoder.layer.0"),
        ("bert", -1, "bert.encoder.layer.0"),
        ("gpt2", "word", "transformer.wte"),
        ("gpt2", "embeddings", "transformer.drop"),
        ("gpt2", 1, "transformer.h.0"),
        ("vit", "embeddings", "vit.embeddings"),
        ("vit", -1, "vit.layers.0"),
    ],
)
def test_at_chooses_where_the_gradient_is_taken(name: str, at: Any, block: str) -> None:
    raw = family(name).inputs[1]
    model = fresh(name).model
    state, gradient = hidden(model, model.get_submodule(block), plain_inputs(family(name), raw), 1)
    close(
        whence.explain(subject(name), raw, method="gradient_x_input", target=1, at=at).scores,
        (state * gradient).sum(-1),
    )
    norms = {"l2": gradient.norm(dim=-1), "l1": gradient.abs().sum(-1), "sum": gradient.sum(-1)}
    for reduce, expected in norms.items():
        close(whence.explain(subject(name), raw, "gradient", 1, at=at, reduce=reduce).scores, expected)


def test_pixels_are_where_a_picture_comes_in() -> None:
    raw = family("vit").inputs[0]
    for method in ("gradient", "gradient_x_input", "integrated_gradients(steps=3)"):
        word = whence.explain(subject("vit"), raw, method=method, at="word")
        pixels = whence.explain(subject("vit"), raw, method=method, at="pixels")
        assert np.array_equal(word.scores, pixels.scores) and pixels.scores[0] == 0  # [CLS] has no pixels


def test_pixels_of_a_pair_leave_the_text_alone() -> None:
    raw = family("clip").inputs[0]
    a = whence.explain(subject("clip"), raw, method="gradient_x_input", at="pixels")
    of_text = np.array([stream == "text" for stream in a.streams])
    assert (a.scores[of_text] == 0).all() and a.scores[~of_text].any()


# --- Patches ----------------------------------------------------------------------------------------------------------

PICTURED = ["vit", "dinov2", "swin", "clip", "vilt"]


def picture_of(name: str) -> Any:
    return family(name).inputs[3]  # of ViLT, one that is cut into more columns than rows


def patch_of(item: whence.Input, row: int, column: int) -> tuple[int, slice, slice]:
    """The feature of a patch, counted by hand, and where its pixels are."""
    assert item.grid is not None
    rows, columns = item.grid
    height, width = (
        size // count for size, count in zip(item.tensors["pixel_values"].shape[1:], item.grid, strict=True)
    )
    ordinary = [i for i, mark in enumerate(item.special) if item.streams[i] == "image" and not mark]
    assert len(ordinary) == rows * columns
    place = slice(row * height, (row + 1) * height), slice(column * width, (column + 1) * width)
    return ordinary[row * columns + column], *place


@pytest.mark.parametrize("name", PICTURED)
@pytest.mark.parametrize("method", ["gradient", "gradient_x_input", "integrated_gradients(steps=3)"])
def test_the_map_of_pixels_sums_to_the_patches(name: str, method: str) -> None:
    a = whence.explain(subject(name), picture_of(name), method=method, at="pixels")
    pixels = a.details["pixels"]
    assert pixels.shape == a.input.tensors["pixel_values"].shape[1:] and a.input.grid is not None
    expected = np.zeros_like(a.scores)
    for row in range(a.input.grid[0]):
        for column in range(a.input.grid[1]):
            feature, down, across = patch_of(a.input, row, column)
            expected[feature] = pixels[down, across].sum()
    close(a.scores, expected)
    assert len(set(np.abs(expected).round(6))) > 4


@pytest.mark.parametrize("name", PICTURED)
def test_patches_are_in_row_major_order(name: str) -> None:
    """Only the painted patch differs from the baseline, and only the token of that name differs inside the model."""
    made, row, column = subject(name), 1, 2
    item = made.encode(picture_of(name))
    feature, down, across = patch_of(item, row, column)
    assert item.features[feature] == f"patch {row},{column}"
    plain = item.tensors["pixel_values"].copy()
    plain[:, down, across] += 1.0
    a = whence.explain(made, picture_of(name), method="integrated_gradients(steps=2)", at="pixels", baseline=plain)
    assert a.scores.nonzero()[0].tolist() == [feature]
    assert a.details["pixels"][down, across].all() and np.count_nonzero(a.details["pixels"]) == (
        (down.stop - down.start) * (across.stop - across.start)
    )
    if name == "swin":  # its blocks see the patches before they are merged
        return
    batch = made.batch([item])
    before = made.trace(batch, made.aim([None]), ("state:embeddings",)).states["embeddings"]
    painted = made.batch([item])
    painted.tensors["pixel_values"] = torch.from_numpy(plain)[None]
    after = made.trace(painted, made.aim([None]), ("state:embeddings",)).states["embeddings"]
    for stream, state in before.items():
        moved = (state != after[stream]).any(-1)[0].nonzero()[:, 0] + batch.span(stream).start
        assert moved.tolist() == ([] if stream == "text" else [feature])


def test_a_painted_patch_is_where_the_heatmap_is() -> None:
    grey = np.full((32, 32, 3), 128, np.uint8)
    painted = grey.copy()
    painted[8:16, 16:24] = (250, 20, 60)  # row 1, column 2 of four by four
    baseline = subject("vit").encode(grey).tensors["pixel_values"]
    a = whence.explain(
        subject("vit"), Image.fromarray(painted), "integrated_gradients(steps=8)", at="pixels", baseline=baseline
    )
    assert [a.features[i] for i in a.scores.nonzero()[0]] == ["patch 1,2"]
    hottest = np.unravel_index(np.abs(a.heatmap()).argmax(), (32, 32))
    assert 8 <= hottest[0] < 16 and 16 <= hottest[1] < 24
