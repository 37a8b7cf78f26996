"""Folders of models that the server was started with: any kind of model, by the name of its folder alone."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import whence
from families import family, fresh
from whence.web.catalogue import Catalogue

INPUTS: dict[str, dict[str, Any]] = {
    "bert": {"texts": {"text": "a warm film", "pair": "a cold one"}},
    "vit": {},
    "llama": {"texts": {"prompt": "a warm film"}},
    "t5": {"texts": {"source": "a warm film"}},
    "clip": {"texts": {"text": "a circle"}},
}


TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
CHAT = [{"role": "user", "content": "a warm film"}]


@pytest.fixture(scope="module")
def client(serve: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server with a folder of each of these families."""
    folders: dict[str, Path] = {}
    for name in INPUTS:
        one = family(name)
        folders[f"my-{name}"] = tmp_path_factory.mktemp(name)
        one.model.save_pretrained(folders[f"my-{name}"])
        one.processor.save_pretrained(folders[f"my-{name}"])
    chatty = fresh("llama")
    chatty.processor.chat_template = TEMPLATE
    folders["my-chat"] = tmp_path_factory.mktemp("chat")
    chatty.model.save_pretrained(folders["my-chat"])
    chatty.processor.save_pretrained(folders["my-chat"])
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


def test_a_chat_and_what_the_model_writes(client: Any, tmp_path: Path) -> None:
    names = [part["name"] for part in client.get("/api/models/my-chat").json()["parts"]]
    assert names == ["prompt", "continuation", "messages", "max_tokens", "stop"]
    texts = {"messages": json.dumps(CHAT), "max_tokens": "2"}
    state = client.ended(client.start(model="my-chat", texts=texts, methods=["leave_one_out"], level="word"))
    assert state["state"] == "done", state
    saved = tmp_path / "chat.json"
    saved.write_bytes(client.get(f"/api/jobs/{state['job']}/results/0.json").content)
    chat = whence.Attribution.load(saved)
    assert len(chat.scores) == 2 and "warm" in "".join(chat.features)
    written = client.start(model="my-llama", texts={"prompt": "a warm film", "max_tokens": "2"}, methods=["gae"])
    assert client.ended(written)["state"] == "done"


@pytest.mark.parametrize(
    ("model", "texts", "says"),
    [
        ("my-chat", {"messages": "hello"}, "messages are JSON such as"),
        ("my-chat", {"messages": "[]"}, "messages is a list such as"),
        ("my-chat", {"messages": json.dumps(CHAT), "prompt": "a film"}, "messages take the place of"),
        ("my-llama", {"messages": json.dumps(CHAT)}, "has no chat template"),
        ("my-llama", {"prompt": "a film", "max_tokens": "many"}, "max_tokens is a whole number"),
        ("my-bert", {"text": "a film", "max_tokens": "3"}, "takes the texts"),
    ],
)
def test_what_cannot_be_written_is_said(client: Any, model: str, texts: dict[str, str], says: str) -> None:
    state = client.ended(client.start(model=model, texts=texts, methods=["gae"]))
    assert state["state"] == "failed" and says in state["error"], state


def test_folders_come_first_and_hide_embedded_models_of_the_same_name(tmp_path: Path) -> None:
    catalogue = Catalogue({"sst2": tmp_path, "mine": tmp_path})
    assert catalogue.names[:2] == ("sst2", "mine") and catalogue.names.count("sst2") == 1
    assert not catalogue.summary("sst2")["embedded"] and catalogue.examples("sst2") == []
