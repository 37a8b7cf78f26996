"""`whence.concept`: it finds what is known of `textures`, captum agrees, passes are few, bad input is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from captum.concept import TCAV, Classifier, Concept
from PIL import Image
from torch import Tensor, nn

import whence
from families import family, subject_of
from whence import zoo
from whence.concepts import activations, sets
from whence.core.sensitivities import Sensitivity

Pictures = list[np.ndarray]


@pytest.fixture(scope="module")
def textures() -> whence.Subject:
    torch.set_num_threads(1)
    return whence.load("textures")


@pytest.fixture(scope="module")
def pool() -> Pictures:
    return zoo.concepts("random", 320, seed=1)


@pytest.fixture(scope="module")
def striped_class() -> Pictures:
    return [e.input for e in zoo.examples("textures", 120, seed=2) if e.label == "striped"]


@pytest.fixture(scope="module")
def found(textures: whence.Subject, pool: Pictures, striped_class: Pictures) -> Sensitivity:
    names = ["striped", "dotted", "zigzag", "red", "blue", "round", "star"]
    settings: dict[str, Any] = {"size": 40, "counter_sets": 4, "random_concepts": 399, "layers": [2, 3]}
    return whence.concept(textures, names, "striped", striped_class, random=pool, **settings)


# --- What is known of the model ---------------------------------------------------------------------------------------


def test_the_own_texture_is_for_its_class_and_large(found: Sensitivity) -> None:
    for layer in (2, 3):
        assert found.verdict("striped", layer) == "for" and found.score("striped", layer) > 0.95
        assert found.accuracy("striped", layer) > 0.8 and found.p_value("striped", layer) <= 0.05
        assert found.effect("striped", layer) > 5


def test_colours_and_shapes_have_less_than_a_tenth_of_the_effect(found: Sensitivity) -> None:
    for layer in (2, 3):
        for concept in ("red", "blue", "round", "star"):
            assert abs(found.derivative(concept, layer)) < found.derivative("striped", layer) / 10, (concept, layer)
            assert abs(found.effect(concept, layer)) < found.effect("striped", layer) / 10
            assert found.verdict(concept, layer) in ("none", "withheld")


def test_other_textures_are_against_the_class(found: Sensitivity) -> None:
    assert found.verdict("zigzag", 3) == "against" and found.score("zigzag", 3) < 0.4


def test_relative_concepts_are_opposites(textures: whence.Subject, striped_class: Pictures) -> None:
    settings: dict[str, Any] = {"relative": True, "size": 30, "counter_sets": 2, "layers": [3], "random_concepts": 99}
    g = whence.concept(textures, ["striped", "dotted"], "striped", striped_class, **settings)
    assert g.score("striped", 3) > 0.9 and g.score("dotted", 3) < 0.1
    assert (g.verdict("striped", 3), g.verdict("dotted", 3)) == ("for", "against")
    assert g.labels == ("striped, not dotted", "dotted, not striped") and "striped, not dotted" in str(g)


def test_a_derivative_foretells_what_a_small_step_does(
    textures: whence.Subject, found: Sensitivity, striped_class: Pictures
) -> None:
    """Finite differences: the deciding token moved along the direction, the rest of the model run again."""
    direction = torch.tensor(found.directions[1][0], dtype=torch.float32)
    batch = textures.batch([textures.encode(picture) for picture in striped_class[:4]])
    aim = textures.aim(["striped"] * 4)
    states = textures.decision(batch, [3])[1][3].state
    step = torch.zeros_like(states)
    step[:, 0] = 1e-2 * direction
    change = [textures.values_at(batch, aim, 3, {"image": states + sign * step}) for sign in (1, -1)]
    slope = (change[0] - change[1]) / 2e-2
    assert np.allclose(slope.numpy(), found.derivatives[0, 1, :4], rtol=0.02, atol=1e-3)


def test_a_direction_is_a_target_that_says_where(textures: whence.Subject, found: Sensitivity) -> None:
    target = found.direction("striped", layer=3)
    example = next(e for e in zoo.examples("textures", 30, seed=5) if e.label == "striped")
    a = whence.explain(textures, example.input, "gradient_x_input", target)
    assert a.target == target and "striped at 3" in str(a.target)
    state = textures.decision(textures.batch([textures.encode(example.input)]), [3])[1][3].state[0, 0].numpy()
    assert a.output == pytest.approx(float(state @ found.directions[1][0]), rel=1e-4)


# --- captum -----------------------------------------------------------------------------------------------------------


class Given(Classifier):
    """A classifier that has learned one direction, whatever it is shown."""

    direction: Tensor

    def __init__(self) -> None:
        super().__init__()

    def train_and_eval(self, dataloader: Any, **kwargs: Any) -> None:
        return None

    def weights(self) -> Tensor:
        return torch.stack([self.direction, -self.direction])

    def classes(self) -> list[int]:
        return [0, 1]


class Logits(nn.Module):
    """The model as captum calls it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        return self.model(pixel_values=pixels).logits


@pytest.mark.filterwarnings("ignore")
def test_scores_and_derivatives_are_those_of_captum(
    textures: whence.Subject, pool: Pictures, striped_class: Pictures, tmp_path: Path
) -> None:
    layer = "vit.layers.2"
    shown = zoo.concepts("striped", 20, seed=3)
    settings: dict[str, Any] = {"layers": [layer], "at": "flat", "counter_sets": 1, "random_concepts": 19}
    g = whence.concept(textures, {"stripes": shown}, "striped", striped_class[:10], random=pool[:80], **settings)

    def pixels(pictures: Pictures) -> Tensor:
        return torch.from_numpy(np.stack([textures.encode(p).tensors["pixel_values"] for p in pictures]))

    classifier = Given()
    classifier.direction = torch.tensor(g.directions[0][0], dtype=torch.float32)
    concepts = [Concept(n, f"c{n}", [pixels(own)]) for n, own in enumerate((shown, pool[:20]))]
    tcav = TCAV(Logits(textures.model), [f"model.{layer}"], classifier=classifier, save_path=str(tmp_path))
    scores = tcav.interpret(pixels(striped_class[:10]), [concepts], target=0)["0-1"][f"model.{layer}"]
    assert g.score("stripes", layer) == pytest.approx(float(scores["sign_count"][0]))
    assert g.derivative("stripes", layer) == pytest.approx(float(scores["magnitude"][0]), rel=1e-4)


# --- Passes -----------------------------------------------------------------------------------------------------------


def test_every_picture_runs_once_whatever_the_layers_and_sets(
    textures: whence.Subject, pool: Pictures, striped_class: Pictures
) -> None:
    shown = {"striped": zoo.concepts("striped", 8), "red": zoo.concepts("red", 8)}

    def rows(**settings: Any) -> int:
        seen: list[int] = []
        hook = textures.model.register_forward_pre_hook(
            lambda module, args, kwargs: seen.append(len(kwargs["pixel_values"])), with_kwargs=True
        )
        given = {"random": pool[:200], "random_concepts": 19, **settings}
        try:
            whence.concept(textures, shown, "striped", striped_class[:5], **given)
        finally:
            hook.remove()
        return sum(seen)

    rows()  # facts about the model are found once
    assert rows(layers=[3], counter_sets=1) == rows(layers="all", counter_sets=20) == 8 + 8 + 200 + 5


# --- Sets of every kind, readings, probes, models ---------------------------------------------------------------------


def test_folders_files_arrays_and_names_are_the_same_sets(
    textures: whence.Subject, pool: Pictures, striped_class: Pictures, tmp_path: Path
) -> None:
    shown = zoo.concepts("red", 8, seed=0)
    for number, picture in enumerate(shown):
        (tmp_path / "red").mkdir(exist_ok=True)
        Image.fromarray(picture).save(tmp_path / "red" / f"{number}.png")
    settings: dict[str, Any] = {"random": pool[:60], "layers": [3], "counter_sets": 2, "random_concepts": 19, "size": 8}
    ways: list[Any] = [{"red": shown}, {"red": np.stack(shown)}, [str(tmp_path / "red")], [tmp_path / "red"], "red"]
    results = [whence.concept(textures, way, "striped", striped_class[:5], **settings) for way in ways]
    assert all(one.concepts == ("red",) for one in results)
    assert all(np.allclose(one.derivatives, results[0].derivatives) for one in results)


def test_states_that_would_fill_the_memory_are_refused(
    textures: whence.Subject, pool: Pictures, striped_class: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tokens of all layers side by side may be too much; the first batch tells, and nothing more is run."""
    sizes: list[int] = []
    decision = whence.Subject.decision
    monkeypatch.setattr(activations, "MAX_BYTES", 2**22)
    monkeypatch.setattr(
        whence.Subject, "decision", lambda s, batch, places: (sizes.append(len(batch)), decision(s, batch, places))[1]
    )
    settings: dict[str, Any] = {"data": striped_class, "random": pool, "size": 20, "counter_sets": 1}
    settings |= {"random_concepts": 19, "batch_size": 16}
    with pytest.raises(ValueError, match=r"states of 340 examples, \d+,\d+ numbers each, take 0\.\d GiB, and at most"):
        whence.concept(textures, "striped", "striped", at="flat", **settings)
    assert sizes == [16]
    assert whence.concept(textures, "striped", "striped", at="mean", **settings).concepts == ("striped",)


@pytest.mark.parametrize("probe", ["difference", "logistic", "hinge"])
@pytest.mark.parametrize("at", ["deciding", "mean", "flat"])
def test_probes_and_readings(
    textures: whence.Subject, pool: Pictures, striped_class: Pictures, probe: Any, at: Any
) -> None:
    settings: dict[str, Any] = {"layers": [3], "counter_sets": 1, "random_concepts": 19, "size": 30}
    given: dict[str, Any] = {"random": pool[:120], "probe": probe, "at": at, **settings}
    g = whence.concept(textures, ["striped"], "striped", striped_class, **given)
    assert g.score("striped", 3) > 0.5 and g.accuracy("striped", 3) > 0.55
    assert (g.at, g.probe) == (at, probe)
    if at == "flat":
        with pytest.raises(ValueError, match="over all tokens at once is no target"):
            g.direction("striped", 3)


def test_texts_are_concepts_of_a_text_model(tmp_path: Path) -> None:
    praise = ["a wonderful film", "a great story", "superb acting", "a moving and beautiful tale", "simply brilliant"]
    blame = ["a terrible film", "a dull story", "awful acting", "a boring and ugly mess", "simply dreadful"]
    more = [f"{text} , {end}" for text in praise for end in ("all in all", "i think")]
    (tmp_path / "praise.txt").write_text("\n".join(praise + more) + "\n", encoding="utf-8")
    (tmp_path / "blame.txt").write_text("\n".join(blame + [f"{t} , i think" for t in blame]) + "\n", encoding="utf-8")
    sst2 = whence.load("sst2")
    settings: dict[str, Any] = {"layers": [-1], "counter_sets": 3, "random_concepts": 99}
    data = [e for e in zoo.examples("sst2", 200) if e.label == "positive"][:20]
    g = whence.concept(sst2, [tmp_path / "praise.txt", tmp_path / "blame.txt"], "positive", data, **settings)
    assert g.concepts == ("praise", "blame") and g.layers == ("-1",)
    assert g.derivative("praise", -1) > 0 > g.derivative("blame", -1)
    assert all(isinstance(text, str) and text for text in g.examples)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "vit"])
def test_models_of_every_kind_run(name: str) -> None:
    ends = ["good", "bad", "fine", "sad", "long", "short", "new", "old", "fast", "slow", "dark", "light", "odd"]
    texts: list[Any] = [f"{start} {end}" for start in ("a film", "the actors", "story") for end in ends]
    many = zoo.concepts("random", 40) if name == "vit" else texts
    settings: dict[str, Any] = {"counter_sets": 2, "random_concepts": 19, "at": "mean"}
    g = whence.concept(subject_of(name), {"c": many[:6]}, 0, many[:3], random=many[6:], **settings)
    assert np.isfinite(g.derivatives).all() and g.derivatives.shape[1] == len(g.layers) >= 1


# --- The result -------------------------------------------------------------------------------------------------------


def test_a_result_is_saved_and_shown(found: Sensitivity, tmp_path: Path) -> None:
    found.save(tmp_path / "g.json")
    assert Sensitivity.load(tmp_path / "g.json") == found
    said = str(found)
    assert "logit of 'striped'" in said and "withheld" in said and "399 random concepts" in said
    page = found.to_html()
    assert page.count("<img") >= 7 * 2 and "furthest along the concept" in page
    drawn = found.plot()
    assert [axes.get_title() for axes in drawn.axes] == ["layer 2", "layer 3"]
    table = found.to_frame()
    assert len(table) == 14 and table.verdict[0] == "for"
    with pytest.raises(KeyError, match="no concept 'stripes' was probed; did you mean 'striped'"):
        found.score("stripes", 2)
    with pytest.raises(KeyError, match="no layer 9 was probed; there is 2, 3"):
        found.score("striped", 9)


def test_results_repeat_by_seed(textures: whence.Subject, pool: Pictures, striped_class: Pictures) -> None:
    settings: dict[str, Any] = {"random": pool[:100], "layers": [3], "random_concepts": 19, "size": 8}
    one, again, other = (
        whence.concept(textures, ["striped"], "striped", striped_class[:5], seed=seed, **settings) for seed in (0, 0, 1)
    )
    assert one == again and not np.array_equal(one.derivatives, other.derivatives)


# --- Bad input --------------------------------------------------------------------------------------------------------


BAD: list[tuple[dict[str, Any], str]] = [
    ({"concepts": {"one": zoo.concepts("red", 1)}}, "'one' has 1 different example, and a probe needs at least 6"),
    ({"concepts": {"same": zoo.concepts("red", 1) * 9}}, "the concept 'same' has 1 different example"),
    ({"concepts": {"none": []}}, "the concept 'none' has no example"),
    ({"concepts": {"a": zoo.concepts("red", 8), "b": zoo.concepts("red", 8)}}, "'a' and 'b' hold the same examples"),
    ({"concepts": {}}, "there is no concept to probe"),
    ({"concepts": 3}, "concepts is a dict of names and sets, or a list of names, folders and files, not 3"),
    ({"concepts": ["stripy"]}, "'stripy' is no file or folder and no concept of the zoo; did you mean 'striped'"),
    ({"concepts": {"words": ["some", "texts", "here"]}}, "holds texts, and textures takes pictures; give pictures"),
    ({"concepts": {"r": zoo.concepts("random", 320, seed=1)[:8]}}, "of the concept 'r' are among the random"),
    ({"target": None}, "name it as the target"),
    ({"target": "stripes"}, "'stripes' is not a label of textures"),
    ({"target": "logit"}, "names no class or token"),
    ({"data": []}, "data is empty"),
    ({"data": [e for e in zoo.examples("textures", 40) if e.label != "striped"]}, "no example of the class 'striped'"),
    ({"random": zoo.concepts("random", 10)}, "at least 32 are needed, and 10 came"),
    ({"layers": 17}, "17"),
    ({"layers": "vit.nowhere"}, "vit.nowhere"),
    ({"layers": [2, 2]}, "every layer is named once"),
    ({"relative": True}, "relative=True sets concepts against each other, and one was given"),
    ({"counter_sets": 0}, "counter_sets takes a whole number from 1 to 1,000, not 0"),
    ({"at": "cls"}, "at takes 'deciding' or 'mean' or 'flat', not 'cls'"),
    ({"probe": "svm"}, "probe takes 'logistic' or 'hinge' or 'difference', not 'svm'"),
    ({"level": 1.0}, "level takes a number above 0 and below 1, not 1.0"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "said"), BAD, ids=[said[:40] for _, said in BAD])
def test_bad_input_is_told_in_one_sentence(
    textures: whence.Subject, pool: Pictures, striped_class: Pictures, given: dict[str, Any], said: str
) -> None:
    usual: dict[str, Any] = {"concepts": {"red": zoo.concepts("red", 8)}, "target": "striped", "random_concepts": 19}
    usual |= {"data": striped_class[:3], "random": pool[:80]}
    with pytest.raises((ValueError, TypeError)) as caught:
        whence.concept(textures, **usual | given)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_an_unreadable_file_is_named(textures: whence.Subject, pool: Pictures, tmp_path: Path) -> None:
    for number, picture in enumerate(zoo.concepts("red", 8)):
        Image.fromarray(picture).save(tmp_path / f"{number}.png")
    (tmp_path / "3.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"the concept '.*', example 3: .*3.png.* cannot be read"):
        whence.concept(textures, [tmp_path], "striped", random=pool)
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00\xd8")
    with pytest.raises(ValueError, match=r"bytes.txt' cannot be read"):
        whence.concept(textures, [tmp_path / "bytes.txt"], "striped", random=pool)


def test_pictures_for_a_text_model_are_told() -> None:
    with pytest.raises(ValueError, match="holds pictures, and bert takes texts"):
        subject = whence.wrap(family("bert").model, family("bert").processor, name="bert")
        whence.concept(subject, ["red"], 0, ["a film"], random=["a"] * 50)


def test_random_examples_are_drawn_where_concepts_are():
    """Else a probe tells drawings of textures from things, whatever the concept is."""
    photos, drawn = whence.load("photos"), zoo.concepts("random", 3, seed=1)
    for concepts in ("red", ["red", "striped"], {"mine": "red"}):
        found = sets.random_examples(photos, None, concepts, 3, 0)
        assert all(np.array_equal(one, other) for one, other in zip(found, drawn, strict=True))
    own = zoo.examples("photos", 2, seed=1)
    for concepts in ({"mine": drawn}, Path("folder"), ["red", "folder"]):
        found = sets.random_examples(photos, None, concepts, 2, 0)
        assert all(np.array_equal(one, example.input) for one, example in zip(found, own, strict=True))
    texts = sets.random_examples(whence.load("sst2"), None, ["red"], 2, 0)
    assert all(isinstance(text, str) for text in texts)
