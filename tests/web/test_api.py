"""The JSON API: models, jobs, events, results, measuring, what changed."""

from __future__ import annotations

import io
import json
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

import whence
from whence import zoo
from whence.zoo.planted_data import truth

TEXT = "the dog walked by a not lovely garden"


def events_of(client: httpx.Client, job: str) -> list[dict[str, Any]]:
    """All events of a job, as a browser would read them."""
    with client.stream("GET", f"/api/jobs/{job}/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        return [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: ")]


def test_models_are_listed_without_their_weights(client: Any) -> None:
    listed = client.get("/api/models").json()
    assert [model["name"] for model in listed] == list(zoo.names())
    assert {model["task"] for model in listed} >= {"text-classification", "image-classification", "seq2seq-lm"}


@pytest.mark.parametrize("name", zoo.names())
def test_a_model_says_what_it_takes(client: Any, name: str) -> None:
    detail = client.get(f"/api/models/{name}").json()
    assert detail["parts"] and detail["examples"]
    first = detail["examples"][0]
    required = {part["name"] for part in detail["parts"] if part["required"]}
    assert required == {part for part in first["texts"] if part in required} | (
        {"image"} if first["picture"] else set()
    )
    if first["picture"]:
        with Image.open(io.BytesIO(client.get(first["picture"]).content)) as picture:
            assert picture.width > 8


def test_methods_that_apply_are_listed_with_options(client: Any) -> None:
    methods = {method["name"]: method for method in client.get("/api/models/planted/methods").json()}
    assert "rise" not in methods and "gae" in methods
    assert {option["name"] for option in methods["integrated_gradients"]["options"]} >= {"steps", "baseline"}
    assert "rise" in {method["name"] for method in client.get("/api/models/digits/methods").json()}


def test_a_run_tells_its_results_method_by_method_and_gives_the_numbers_of_explain(client: Any) -> None:
    methods = ["leave_one_out", "integrated_gradients(steps=8)", "gae"]
    job = client.start(model="planted", texts={"text": TEXT}, methods=methods, target="positive")
    events = events_of(client, job)
    names = [event["event"] for event in events]
    assert names == ["waiting", "started", "input", *["method", "result"] * 3, "done"]
    assert [event["method"] for event in events if event["event"] == "result"] == methods
    subject = whence.load("planted")
    for number, method in enumerate(methods):
        sent = client.get(f"/api/jobs/{job}/results/{number}.json").json()
        expected = whence.explain(subject, TEXT, method, "positive")
        assert sent["method"] == method
        assert events[-1]["event"] == "done"
        found = whence.Attribution.from_dict(sent)
        assert np.allclose(found.scores, expected.scores, atol=1e-6)
    prediction = events[2]["prediction"]
    assert sum(one["probability"] for one in prediction) == pytest.approx(1)


def test_a_method_that_cannot_does_not_stop_the_others(client: Any) -> None:
    job = client.start(model="planted", texts={"text": TEXT}, methods=["attention(layer=99)", "gae"])
    events = events_of(client, job)
    assert [event["event"] for event in events][3:] == ["method", "refused", "method", "result", "done"]
    assert "99" in events[4]["error"]


@pytest.mark.parametrize("ending", [".json", ".html", ".csv", ".png", ".svg", ".pdf"])
@pytest.mark.parametrize("which", ["0", "all"])
def test_results_are_files(client: Any, which: str, ending: str) -> None:
    job = client.start(model="planted", texts={"text": TEXT}, methods=["gae", "lrp"])
    client.ended(job)
    answer = client.get(f"/api/jobs/{job}/results/{which}{ending}")
    starts = {".json": b"{", ".html": b"<!doctype", ".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    assert answer.status_code == 200 and answer.content.startswith(starts.get(ending, b""))
    assert answer.headers["content-disposition"].startswith("attachment")


def test_a_fragment_is_what_the_library_shows(client: Any) -> None:
    from whence.core import display

    job = client.start(model="planted", texts={"text": TEXT}, methods=["gae"])
    client.ended(job)
    found = whence.Attribution.from_dict(client.get(f"/api/jobs/{job}/results/0.json").json())
    assert client.get(f"/api/jobs/{job}/results/0/fragment").text == display.fragment(found)


def test_a_picture_is_sent_and_explained(client: Any) -> None:
    file = io.BytesIO()
    Image.fromarray(zoo.examples("digits", 1)[0].input).save(file, "PNG")
    sent = client.post("/api/pictures", content=file.getvalue(), headers={"content-type": "image/png"})
    assert sent.status_code == 201 and (sent.json()["width"], sent.json()["height"]) == (28, 28)
    job = client.start(model="digits", picture=sent.json()["picture"], methods=["gae"])
    assert client.ended(job)["state"] == "done"
    drawn = client.start(model="digits", example=0, methods=["gae"])
    assert client.ended(drawn)["state"] == "done"


@pytest.mark.parametrize("name", ["recall", "dates", "shapes", "textures"])
def test_every_kind_of_model_runs_its_first_example(client: Any, name: str) -> None:
    example = client.get(f"/api/models/{name}").json()["examples"][0]
    job = client.start(model=name, texts=example["texts"], example=0, methods=["gae", "gradient_x_input"])
    state = client.ended(job)
    assert state["state"] == "done" and len(state["results"]) == 2, state
    assert state["about"]["truth"] is not None
    assert state["results"][0]["truth"]["of"] >= 1


def test_the_truth_of_a_planted_example_is_found_and_lost_with_an_edit(client: Any) -> None:
    example = client.get("/api/models/planted").json()["examples"][0]
    right = client.ended(client.start(model="planted", texts=example["texts"], example=0, methods=["leave_one_out"]))
    assert right["results"][0]["truth"]["found"] == right["results"][0]["truth"]["of"]
    two_cues = {"text": example["texts"]["text"] + " lovely awful dog"}
    state = client.ended(client.start(model="planted", texts=two_cues, example=0, methods=["leave_one_out"]))
    assert state["about"]["truth"] is None and state["results"][0]["truth"] is None
    other = client.get("/api/models/recall").json()["examples"][0]["texts"]
    edited = {"prompt": other["prompt"].replace("v", "k", 1)}
    state = client.ended(client.start(model="recall", texts=edited, example=0, methods=["gae"]))
    assert state["about"]["truth"] is None


def test_the_truth_of_planted_follows_the_rule_in_any_text(client: Any) -> None:
    for example in zoo.examples("planted", 50):
        assert np.array_equal(truth(example.input.split()), example.truth)
    text = "never the dog walked by a not lovely garden"
    state = client.ended(client.start(model="planted", texts={"text": text}, methods=["leave_one_out"]))
    marked = [
        name for name, decides in zip(state["about"]["features"], state["about"]["truth"], strict=True) if decides
    ]
    assert [name.strip() for name in marked] == ["not", "lovely"]


def test_patches_have_their_places(client: Any) -> None:
    state = client.ended(client.start(model="textures", example=0, methods=["gae"]))
    grid = state["about"]["grid"]
    assert (grid["rows"], grid["columns"], grid["place"]) == (6, 6, [0, 0, 100, 100])
    assert [state["about"]["features"][i] for i in grid["features"][:2]] == ["patch 0,0", "patch 0,1"]


def test_features_at_a_level(client: Any) -> None:
    text = "The plot is dull. The actors are wonderful!"
    job = client.start(model="sst2", texts={"text": text}, methods=["leave_one_out"], level="sentence")
    assert client.ended(job)["state"] == "done"
    found = client.get(f"/api/jobs/{job}/results/0.json").json()
    assert "The plot is dull." in found["input"]["features"]
    assert client.post("/api/jobs", json={"model": "sst2", "texts": {"text": text}, "level": "page"}).status_code == 422


def test_attention_is_shown(client: Any) -> None:
    job = client.start(model="planted", kind="attention", texts={"text": TEXT})
    state = client.ended(job)
    assert state["results"][0]["streams"] == {"text:text": [3, 4]}
    assert "<" in client.get(f"/api/jobs/{job}/results/0/fragment").text
    assert client.get(f"/api/jobs/{job}/results/0.svg").content.startswith(b"<?xml")


def test_measuring_gives_the_values_and_curves_of_evaluate(client: Any) -> None:
    job = client.start(model="planted", texts={"text": TEXT}, methods=["gae", "lrp"], target="positive")
    client.ended(job)
    started = client.post(f"/api/jobs/{job}/measure", json={"metric": "auac"})
    assert client.ended(started.json()["job"])["state"] == "done"
    board = whence.Scoreboard.from_dict(client.get(f"/api/jobs/{started.json()['job']}/results/0.json").json())
    expected = whence.evaluate(whence.load("planted"), [TEXT], ["gae", "lrp"], ["auac"], target="positive")
    assert np.allclose(board.values, expected.values) and np.allclose(board.curves, expected.curves, equal_nan=True)
    assert board.axes == expected.axes and board.hidden == expected.hidden


def test_what_changed_is_said_token_by_token(client: Any) -> None:
    before = client.start(model="planted", texts={"text": "the dog walked by a lovely garden"}, methods=["gae", "lrp"])
    now = client.start(model="planted", texts={"text": "the dog walked by a not lovely garden"}, methods=["lrp"])
    first, second = client.ended(before), client.ended(now)
    found = client.get(f"/api/jobs/{now}/changes/{before}").json()
    assert found["prediction"] == {"before": first["about"]["prediction"], "now": second["about"]["prediction"]}
    [lrp] = found["methods"]
    tokens = {row["token"].strip(): row for row in lrp["tokens"]}
    assert tokens["not"]["before"] is None and tokens["not"]["now"] is not None
    assert tokens["lovely"]["before"] is not None and tokens["lovely"]["now"] is not None
    assert [row["token"] for row in lrp["tokens"]] == second["about"]["features"]


def test_the_api_is_described_and_listed_without_the_network(client: Any) -> None:
    described = client.get("/api/openapi.json").json()
    assert {"/api/models", "/api/jobs", "/api/jobs/{job}/events", "/api/pictures"} <= set(described["paths"])
    assert all("description" in facts for verbs in described["paths"].values() for facts in verbs.values())
    listing = client.get("/api/docs").text
    assert "POST /api/jobs" in listing and "//" not in listing.replace("<!doctype", "")


def test_the_page_and_its_files_are_served(client: Any) -> None:
    assert client.get("/").headers["content-type"].startswith("text/html")
    for file in ("static/app.js", "static/app.css", "assets/whence.js", "assets/style.css"):
        assert client.get(f"/{file}").status_code == 200


def test_ignored_words_are_told_beside_the_prediction_as_it_is_and_held_in_every_job(client: Any) -> None:
    text = "the dog walked by a not lovely garden"
    job = client.start(model="planted", texts={"text": text}, methods=["gae", "leave_one_out"], ignore=["NOT"])
    told = next(event for event in events_of(client, job) if event["event"] == "input")
    assert told["ignored"] == ["not"] and told["words"] == text.split()
    assert told["without"][0]["label"] == "negative" and told["prediction"][0]["label"] == "positive"
    for number in (0, 1):
        found = whence.Attribution.from_dict(client.get(f"/api/jobs/{job}/results/{number}.json").json())
        expected = whence.explain(whence.load("planted"), text, found.method, ignore="not")
        assert np.allclose(found.scores, expected.scores, atol=1e-6) and found.output == pytest.approx(expected.output)
        assert found.intervention == expected.intervention and not found.scores[list(found.input.ignored)].any()
    assert "ignoring ‘not’" in client.get(f"/api/jobs/{job}/results/0/fragment").text
    measured = client.post(f"/api/jobs/{job}/measure", json={"metric": "auac"}).json()["job"]
    assert events_of(client, measured)[-1]["event"] == "done"
    shown = client.start(model="planted", kind="attention", texts={"text": text}, ignore=["not"])
    assert events_of(client, shown)[-1]["event"] == "done"
    assert "attention to this is closed" in client.get(f"/api/jobs/{shown}/results/0/fragment").text


def test_words_to_ignore_that_cannot_be_are_refused_in_a_sentence(client: Any) -> None:
    job = client.start(model="planted", texts={"text": TEXT}, methods=["gae"], ignore=["music"])
    failed = events_of(client, job)[-1]
    assert failed["event"] == "failed" and "'music', which is not in the text" in failed["error"]
    too_long = client.post(
        "/api/jobs", json={"model": "planted", "texts": {"text": TEXT}, "methods": ["gae"], "ignore": ["x" * 999]}
    )
    assert too_long.status_code == 413 and "ignore" in too_long.json()["error"]
