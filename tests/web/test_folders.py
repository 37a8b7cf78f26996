"""Folders of models that the server was started with: any kind of model, by the name of its folder alone."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from families import family
from whence.web.catalogue import Catalogue

INPUTS: dict[str, dict[str, Any]] = {
    "bert": {"texts": {"text": "a warm film", "pair": "a cold one"}},
    "vit": {},
    "llama": {"texts": {"prompt": "a warm film"}},
    "t5": {"texts": {"source": "a warm film"}},
    "clip": {"texts": {"text": "a circle"}},
}


@pytest.fixture(scope="module")
def client(serve: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server with a folder of each of these families."""
    folders: dict[str, Path] = {}
    for name in INPUTS:
        one = family(name)
        folders[f"my-{name}"] = tmp_path_factory.mktemp(name)
        one.model.save_pretrained(folders[f"my-{name}"])
        one.processor.save_pretrained(folders[f"my-{name}"])
    with serve(catalogue=Catalogue(folders)) as client:
        yield client


@pytest.mark.parametrize("name", INPUTS)
def test_a_model_of_any_kind_is_explained(client: Any, name: str) -> None:
    detail = client.get(f"/api/models/my-{name}").json()
    assert not detail["embedded"] and detail["examples"] == []
    given = dict(INPUTS[name])
    if any(part["kind"] == "picture" for part in detail["parts"]):
        file = io.BytesIO()
        Image.new("RGB", (40, 30), "red").save(file, "PNG")
        given["picture"] = client.post("/api/pictures", content=file.getvalue()).json()["picture"]
    state = client.ended(client.start(model=f"my-{name}", methods=["gradient_x_input", "gae"], **given))
    assert state["state"] == "done" and len(state["results"]) == 2, state
    assert client.ended(client.start(model=f"my-{name}", kind="attention", **given))["state"] == "done"


def test_folders_come_first_and_hide_embedded_models_of_the_same_name(tmp_path: Path) -> None:
    catalogue = Catalogue({"sst2": tmp_path, "mine": tmp_path})
    assert catalogue.names[:2] == ("sst2", "mine") and catalogue.names.count("sst2") == 1
    assert not catalogue.summary("sst2")["embedded"] and catalogue.examples("sst2") == []
