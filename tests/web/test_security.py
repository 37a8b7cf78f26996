"""What the server refuses, and what its answers forbid a browser to do."""

from __future__ import annotations

import io
import socket
import struct
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from whence.web.limits import Limits
from whence.web.server import folders_by_name, listening

RUN = {"model": "planted", "texts": {"text": "the dog walked"}, "methods": ["gae"]}


def sentence(answer: Any) -> str:
    """The error of an answer, which is one sentence and nothing else."""
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json()) == {"error"}
    said = str(answer.json()["error"])
    assert said and "\n" not in said and "Traceback" not in said and "/src/" not in said
    return said


# ---- who may ask -----------------------------------------------------------------------------------------------------


def test_it_listens_on_this_machine_alone() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.5"):
        with pytest.raises(ValueError, match="--allow-remote"):
            listening(host, 0, False)
    with listening("127.0.0.1", 0, False) as opened:
        assert opened.getsockname()[0] == "127.0.0.1"


def test_a_host_is_an_address() -> None:
    with pytest.raises(ValueError, match="--host takes the address"):
        listening("example.com", 0, True)


def test_a_taken_port_is_said_and_an_unnamed_one_is_searched() -> None:
    with listening("127.0.0.1", None, False) as first, listening("127.0.0.1", None, False) as second:
        assert first.getsockname()[1] != second.getsockname()[1]
        with pytest.raises(OSError, match="--port"):
            listening("127.0.0.1", first.getsockname()[1], False)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8642", "127.0.0.1.evil.example", "169.254.1.1", ""])
def test_a_name_that_others_let_point_here_is_refused(client: Any, host: str) -> None:
    answer = client.get("/api/models", headers={"host": host})
    assert answer.status_code == 421
    assert "does not answer to the host" in sentence(answer)


def test_own_names_are_answered(client: Any) -> None:
    port = client.base_url.port
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "LOCALHOST"):
        assert client.get("/api/models", headers={"host": host}).status_code == 200


def test_with_remote_addresses_are_answered_and_foreign_names_are_not(serve: Any) -> None:
    with serve(remote=True, hosts=("lab.example",)) as client:
        for host in ("192.168.1.5:8642", "[fe80::1]", "lab.example"):
            assert client.get("/api/models", headers={"host": host}).status_code == 200
        assert client.get("/api/models", headers={"host": "evil.example"}).status_code == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
@pytest.mark.parametrize("path", ["/api/jobs", "/api/pictures", "/api/jobs/x/measure"])
def test_pages_of_other_sites_cannot_start_work(client: Any, headers: dict[str, str], path: str) -> None:
    answer = client.post(path, json=RUN, headers=headers)
    assert answer.status_code == 403
    assert "another site" in sentence(answer)


def test_the_own_page_and_programs_may(client: Any) -> None:
    own = str(client.base_url).rstrip("/")
    for headers in ({}, {"origin": own}, {"origin": own, "sec-fetch-site": "same-origin"}):
        assert client.post("/api/jobs", json=RUN, headers=headers).status_code == 202


def test_a_form_of_another_site_is_no_json(client: Any) -> None:
    """Forms can be sent across sites without asking, but not as JSON."""
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        answer = client.post("/api/jobs", content=b'{"model": "planted"}', headers={"content-type": kind})
        assert answer.status_code == 422
        sentence(answer)


# ---- what may be asked for -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["/etc", "../planted", "bert-base-uncased", "google/vit-base-patch16-224", "", "planted/../sst2", "."]
)
def test_a_model_is_a_listed_name_and_nothing_else(client: Any, name: str) -> None:
    answer = client.post("/api/jobs", json={**RUN, "model": name})
    assert answer.status_code == 404
    assert "there is no model" in sentence(answer)


def test_no_request_names_a_file(client: Any, tmp_path: Path) -> None:
    """`explain` takes the path of a picture; the server must not."""
    file = tmp_path / "secret.png"
    Image.new("RGB", (28, 28)).save(file)
    for given in (
        {"texts": {"image": str(file)}, "example": 0},
        {"picture": str(file)},
        {"texts": {"image": str(file)}},
    ):
        answer = client.post("/api/jobs", json={"model": "digits", "methods": ["gae"], **given})
        state = client.ended(answer.json()["job"]) if answer.status_code == 202 else {"state": "failed"}
        assert state["state"] == "failed"
    answer = client.post("/api/jobs", json={"model": "digits", "methods": ["gae"], "input": str(file)})
    assert answer.status_code == 422 and "input" in sentence(answer)


@pytest.mark.parametrize("written", ["direction({}, {!r})", " direction ({}, {!r}, at='mean')"])
def test_no_target_is_read_from_a_file(client: Any, tmp_path: Path, written: str) -> None:
    """A direction inside the model is named by the file of its numbers, which `explain` opens; the server must not."""
    np.save(tmp_path / "vector.npy", np.ones(384))
    target = written.format("'bert.encoder.layer.3'", str(tmp_path / "vector.npy"))
    answer = client.post("/api/jobs", json={**RUN, "target": target})
    assert answer.status_code == 422 and "no request names files" in sentence(answer)


@pytest.mark.parametrize(
    "method", ["no_such_method", "__import__('os')", "gae(", "gae(steps=9)", "rise", "gae;gae", ""]
)
def test_methods_are_registered_ones_that_apply(client: Any, method: str) -> None:
    answer = client.post("/api/jobs", json={**RUN, "methods": [method]})
    assert answer.status_code == 422
    sentence(answer)


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/app.html",
        "/assets/..%2f..%2fapp.py",
        "/api/models/..%2fsst2",
        "/api/jobs/x/results/..%2f0.json",
        "/docs",
        "/redoc",
        "/openapi.json",
    ],
)
def test_only_listed_files_are_served(client: Any, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    sentence(answer)


def test_targets_that_do_not_exist_are_said(client: Any) -> None:
    job = client.start(**RUN, target="no such label")
    events = client.get(f"/api/jobs/{job}/events").text
    assert "event: refused" in events and "no such label" in events


# ---- how much may be asked for ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(serve: Any) -> Any:
    """A server with limits that are quickly reached."""
    limits = Limits(body=20_000, letters=100, features=12, pixels=5_000, methods=2, spec=60, reading=0.5, pictures=2)
    with serve(limits) as client:
        yield client


def test_a_body_may_not_be_larger_than_allowed(small: Any) -> None:
    answer = small.post("/api/pictures", content=b"x" * 20_001)
    assert answer.status_code == 413 and "20,000 bytes" in sentence(answer)


@pytest.mark.parametrize("path", ["/api/pictures", "/api/jobs"])
def test_a_body_of_untold_length_is_counted(small: Any, path: str) -> None:
    chunks = (b"x" * 1000 for _ in range(50))
    answer = small.post(path, content=chunks, headers={"content-type": "application/json"})
    assert answer.status_code == 413 and "20,000 bytes" in sentence(answer)


def test_a_body_that_does_not_arrive_is_not_waited_for(small: Any) -> None:
    with socket.create_connection(("127.0.0.1", small.base_url.port), 10) as slow:
        slow.sendall(b"POST /api/pictures HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\nabc")
        assert b" 408 " in slow.recv(1000).split(b"\r\n")[0]


@pytest.mark.parametrize("headers", ["host: evil.example", "host: localhost\r\norigin: https://evil.example"])
def test_a_refusal_is_read_also_by_who_still_sends(client: Any, headers: str) -> None:
    """A connection that is closed while a body is under way is reset, and the answer is lost with it."""
    with socket.create_connection(("127.0.0.1", client.base_url.port), 10) as slow:
        slow.sendall(f"POST /api/jobs HTTP/1.1\r\n{headers}\r\ncontent-length: 20000\r\n\r\n".encode())
        time.sleep(0.2)
        for _ in range(20):
            slow.sendall(b"x" * 1000)
            time.sleep(0.005)
        assert slow.recv(1000).split(b"\r\n")[0].split()[1] in (b"421", b"403")


def test_texts_have_a_length(small: Any) -> None:
    answer = small.post("/api/jobs", json={**RUN, "texts": {"text": "a" * 101}})
    assert answer.status_code == 413 and "100 letters" in sentence(answer)


def test_inputs_have_a_number_of_tokens(small: Any) -> None:
    job = small.start(**{**RUN, "texts": {"text": "the dog walked by the dog and the dog walked by the dog"}})
    state = small.ended(job)
    assert state["state"] == "failed" and "12 tokens" in state["error"]


def test_methods_have_a_number_and_a_length(small: Any) -> None:
    answer = small.post("/api/jobs", json={**RUN, "methods": ["gae", "lrp", "gradient"]})
    assert answer.status_code == 413 and "1 to 2 methods" in sentence(answer)
    answer = small.post("/api/jobs", json={**RUN, "methods": ["gae" + " " * 60]})
    assert answer.status_code == 413 and "60 letters" in sentence(answer)
    assert small.post("/api/jobs", json={**RUN, "methods": []}).status_code == 413
    assert small.post("/api/jobs", json={**RUN, "methods": ["gae", "gae"]}).status_code == 422
    answer = small.post("/api/jobs", json={**RUN, "target": "x" * 61})
    assert answer.status_code == 413


def bomb(width: int, height: int) -> bytes:
    """A PNG that says it is this large, of a few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(("width", "height"), [(100, 51), (100_000, 100_000), (2**31 - 1, 2**31 - 1)])
def test_a_picture_is_refused_by_its_pixels_before_it_is_decoded(small: Any, width: int, height: int) -> None:
    answer = small.post("/api/pictures", content=bomb(width, height))
    assert answer.status_code in (413, 422)
    said = sentence(answer)
    assert "5,000 pixels" in said or "no picture that can be read" in said


def test_what_is_no_picture_is_said(small: Any) -> None:
    for sent in (b"", b"hello", b"%PDF-1.4", b"\x89PNG\r\n\x1a\n", bomb(50, 50)[:60]):
        answer = small.post("/api/pictures", content=sent)
        assert answer.status_code == 422
        sentence(answer)


def test_formats_with_rarely_seen_decoders_are_refused(small: Any) -> None:
    for form in ("TIFF", "EPS", "PPM"):
        file = io.BytesIO()
        Image.new("RGB", (10, 10)).save(file, form)
        assert small.post("/api/pictures", content=file.getvalue()).status_code == 422


def test_only_the_newest_pictures_are_kept(small: Any) -> None:
    file = io.BytesIO()
    Image.new("RGB", (10, 10)).save(file, "PNG")
    names = [small.post("/api/pictures", content=file.getvalue()).json()["picture"] for _ in range(3)]
    states = [
        small.ended(small.start(model="digits", picture=name, methods=["gae"]), 60)
        for name in (names[0], "guessed", names[2])
    ]
    assert [state["state"] for state in states] == ["failed", "failed", "done"] or "tokens" in states[2]["error"]
    assert "send it again" in states[0]["error"]


def test_broken_json_is_one_sentence(client: Any) -> None:
    for sent in (b"{", b"[]", b'{"model": 3}', b"\xff", b'{"model": "planted", "seed": -1}', b"[" * 10_000):
        answer = client.post("/api/jobs", content=sent, headers={"content-type": "application/json"})
        assert answer.status_code in (400, 422)
        sentence(answer)


def test_what_is_not_there_is_one_sentence(client: Any) -> None:
    assert "no such page" in sentence(client.get("/nothing"))
    assert "not used that way" in sentence(client.put("/api/models"))
    for path in ("/api/jobs/none", "/api/jobs/none/events", "/api/jobs/none/results/0.json"):
        assert client.get(path).status_code == 404
        assert "run it again" in sentence(client.get(path))


# ---- what a browser may do with answers ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/api/models", "/api/docs", "/static/app.js", "/nothing", "/favicon.ico"])
def test_answers_forbid_scripts_of_others_sniffing_and_framing(client: Any, path: str) -> None:
    headers = client.get(path).headers
    policy = {part.split()[0]: part.split()[1:] for part in headers["content-security-policy"].split(";")}
    assert policy["default-src"] == ["'none'"] and policy["script-src"] == ["'self'"]
    assert policy["frame-ancestors"] == ["'none'"] and policy["connect-src"] == ["'self'"]
    assert policy["style-src"] == ["'self'"] and policy["base-uri"] == ["'none'"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in headers and "server" not in headers


def test_refused_requests_have_the_same_headers(client: Any) -> None:
    headers = client.get("/", headers={"host": "evil.example"}).headers
    assert "script-src 'self'" in headers["content-security-policy"]


def test_markup_in_a_text_stays_text(client: Any) -> None:
    text = "<script>alert(1)</script> <img src=x onerror=alert(1)> the dog"
    job = client.start(model="sst2", texts={"text": text}, methods=["gradient"])
    assert client.ended(job)["state"] == "done"
    fragment = client.get(f"/api/jobs/{job}/results/0/fragment").text
    assert "<script" not in fragment.lower() and "<img src=x" not in fragment


def test_the_page_has_no_script_of_its_own_text(client: Any) -> None:
    import re

    page = client.get("/").text
    assert all('src="' in tag for tag in re.findall("<script[^>]*>", page))
    assert not re.search(r"\son[a-z]+=", page) and "<style" not in page and "http" not in page


# ---- folders of the user's own ---------------------------------------------------------------------------------------


def test_folders_are_named_by_their_last_part(tmp_path: Path) -> None:
    folders = [tmp_path / "a" / "mine", tmp_path / "b" / "mine"]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    assert folders_by_name(folders) == {"mine": folders[0], "mine-2": folders[1]}
    with pytest.raises(ValueError, match=r"has no config\.json"):
        folders_by_name([tmp_path])
