"""The routes of the server: a JSON API, described at /api/openapi.json, and the page that uses it."""

from __future__ import annotations

import asyncio
import contextlib
import html
import io
import json
import re
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi import Path as InPath
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from whence.core import display
from whence.core.results import Attribution, Comparison
from whence.web.catalogue import Catalogue, UnknownModel
from whence.web.changes import changes
from whence.web.guard import Guard
from whence.web.inputs import Asked, Gone, Pictures, TooLarge, check_letters
from whence.web.jobs import Full, Job, TooMany, Worker, sentence
from whence.web.limits import Limits
from whence.web.runs import Runs, add_runs
from whence.web.schemas import Error, JobState, Metric, Picture, Start
from whence.web.work import Desk, Explain, Measure

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".csv": "text/csv; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".pdf": "application/pdf",
}
STATIC = {"app.css": "text/css; charset=utf-8", "app.js": "text/javascript; charset=utf-8"}
ASSETS = {"style.css": "text/css; charset=utf-8", "whence.js": "text/javascript; charset=utf-8"}
HEARTBEAT = 10.0  # seconds without an event after which a stream sends a sign of life
_drawing = threading.Lock()  # matplotlib draws for one thread at a time

Name = Annotated[str, InPath(max_length=100)]


class Server:
    """The objects that the routes share: models, pictures, jobs, the worker."""

    def __init__(self, catalogue: Catalogue, limits: Limits) -> None:
        self.catalogue, self.limits = catalogue, limits
        self.pictures = Pictures(limits)
        self.desk = Desk(catalogue, self.pictures, limits)
        self.worker = Worker(self.desk, limits, self.desk.prepare)

    @contextlib.asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """The worker works while the app runs; jobs that nobody asks about are cancelled every second."""
        self.worker.start()
        looking = asyncio.create_task(self._look_after())
        try:
            yield
        finally:
            looking.cancel()
            await run_in_threadpool(self.worker.stop)

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(1)
            self.worker.cancel_unseen()

    def state_of(self, job: Job) -> JobState:
        """The state of a job as the API returns it."""
        endings = display.endings(job.results[0]) if job.results else ()
        return JobState(
            job=job.id,
            kind=job.kind,
            state=job.state,  # type: ignore[arg-type]
            error=job.error,
            about=job.about,
            results=job.facts,
            files=[ending for ending in endings if ending in KINDS],
        )

    def result_of(self, job: Job, which: str) -> Any:
        """A result by its number; "all" is the comparison of all explanations of a job."""
        if which == "all" and job.results and isinstance(job.results[0], Attribution):
            return Comparison(tuple(job.results))
        if not which.isdecimal() or len(which) > 4 or int(which) >= len(job.results):
            raise Gone(
                f"the job has {len(job.results)} results so far, numbered from 0, and none called {which[:20]!r}"
            )
        return job.results[int(which)]

    def add(self, kind: str, asked: Any, request: Request) -> Job:
        """Put a job into the queue."""
        client = request.client.host if request.client else ""
        return self.worker.add(Job(kind, asked, client, self.limits.seconds))


def create(
    catalogue: Catalogue,
    limits: Limits | None = None,
    *,
    hosts: tuple[str, ...] = (),
    remote: bool = False,
    runs: tuple[Path, ...] = (),
) -> Guard:
    """The whole app: routes behind their guard."""
    server = Server(catalogue, limits or Limits())
    app = FastAPI(
        title="whence",
        summary="Where a transformer's prediction came from.",
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        lifespan=server.lifespan,
        responses={status: {"model": Error} for status in (400, 404, 413, 422, 429, 503)},
    )
    _add_errors(app, server)
    _add_models(app, server)
    _add_starting(app, server)
    _add_jobs(app, server)
    _add_results(app, server)
    add_runs(app, Runs(runs))
    _add_page(app)
    return Guard(app, server.limits, hosts, remote)


def _add_errors(app: FastAPI, server: Server) -> None:
    """Errors are one sentence of JSON, and never a trace."""

    def answer(status: int, headers: Callable[[], dict[str, str]] = dict) -> Callable[[Request, Exception], Response]:
        return lambda request, error: JSONResponse({"error": sentence(error)}, status, headers())

    def retry() -> dict[str, str]:
        return {"Retry-After": str(server.worker.patience)}

    statuses: dict[type[Exception], int] = {UnknownModel: 404, Gone: 404, TooLarge: 413}
    statuses |= dict.fromkeys((ValueError, TypeError, OSError, ImportError), 422)
    for kind, status in statuses.items():
        app.add_exception_handler(kind, answer(status))
    app.add_exception_handler(Full, answer(503, retry))
    app.add_exception_handler(TooMany, answer(429, retry))

    async def of_http(request: Request, error: Any) -> Response:
        known = {404: "there is no such page here", 405: "this address is not used that way"}
        said = error.detail if error.detail not in ("Not Found", "Method Not Allowed") else known[error.status_code]
        return JSONResponse({"error": said}, error.status_code, error.headers)

    async def of_validation(request: Request, error: Any) -> Response:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part != "body") or "the body"
        return JSONResponse({"error": f"{place}: {first['msg']}; /api/docs says what is expected"}, 422)

    async def unforeseen(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": "the server could not do this; its log says why"}, 500)

    app.add_exception_handler(HTTPException, of_http)
    app.add_exception_handler(RequestValidationError, of_validation)
    app.add_exception_handler(Exception, unforeseen)


def _add_models(app: FastAPI, server: Server) -> None:
    catalogue = server.catalogue

    @app.get("/api/models", tags=["models"])
    def models() -> list[dict[str, Any]]:
        """The models that may be named, in the order in which a page lists them."""
        return [catalogue.summary(name) for name in catalogue.names]

    @app.get("/api/models/{name}", tags=["models"])
    def model(name: Name) -> dict[str, Any]:
        """What a model takes and gives: parts, labels, examples."""
        return catalogue.detail(name)

    @app.get("/api/models/{name}/methods", tags=["models"])
    def methods(name: Name) -> list[dict[str, Any]]:
        """The methods that apply to a model, with their options."""
        catalogue.check(name)
        records, task = catalogue.methods(), catalogue.subject(name).task
        return [
            {
                "name": record.name,
                "family": record.family,
                "summary": record.summary,
                "paper": record.paper,
                "signed": record.signed,
                "options": [
                    {"name": option.name, "takes": option.takes, "default": repr(option.default)}
                    for option in record.options.values()
                ],
            }
            for record in records
            if task in record.tasks
        ]

    @app.get("/api/models/{name}/examples/{number}.png", tags=["models"], response_class=Response)
    def example(name: Name, number: int) -> Response:
        """The picture of an example."""
        from PIL import Image

        picture = catalogue.parts(name, number).get("image")
        if picture is None:
            raise Gone(f"the examples of {name} have no pictures")
        file = io.BytesIO()
        Image.fromarray(picture).save(file, "PNG")
        return Response(file.getvalue(), media_type="image/png", headers={"Cache-Control": "max-age=3600"})


def _add_starting(app: FastAPI, server: Server) -> None:
    limits = server.limits

    @app.post("/api/pictures", status_code=201, tags=["jobs"], openapi_extra=_bytes_of_a_picture())
    async def send_picture(request: Request) -> Picture:
        """Send the bytes of a picture (PNG, JPEG, WebP, GIF, BMP) and get a name for it."""
        name, picture = await run_in_threadpool(server.pictures.add, await request.body())
        return Picture(picture=name, width=picture.shape[1], height=picture.shape[0])

    @app.post("/api/jobs", status_code=202, tags=["jobs"])
    def start(wanted: Start, request: Request) -> JobState:
        """Put a run into the queue. Watch its events: a job that nobody watches or asks about is cancelled."""
        server.catalogue.check(wanted.model)
        if wanted.kind == "explain" and not 1 <= len(wanted.methods) <= limits.methods:
            raise TooLarge(f"a run takes 1 to {limits.methods} methods, and {len(wanted.methods)} were named")
        for text in (*wanted.methods, *wanted.ignore, str(wanted.target)):
            if len(text) > limits.spec:
                raise TooLarge(
                    f"a method, a target or a word to ignore may have {limits.spec} letters, and one has {len(text):,}"
                )
        if re.search(r"direction\s*\(", str(wanted.target)):
            raise ValueError("a direction is read from a file, and no request names files here; choose another target")
        check_letters(wanted.texts, limits)
        methods = tuple(wanted.methods) if wanted.kind == "explain" else ()
        if len(set(methods)) < len(methods):
            raise ValueError("a method was named twice; name each once, or give it other options")
        server.desk.check_methods(wanted.model, methods)
        asked = Asked(wanted.model, wanted.texts, wanted.picture, wanted.example)
        explain = Explain(asked, methods, wanted.target, wanted.seed, wanted.level, tuple(wanted.ignore))
        return server.state_of(server.add(wanted.kind, explain, request))


def _add_jobs(app: FastAPI, server: Server) -> None:
    worker = server.worker

    @app.get("/api/jobs/{job}", tags=["jobs"])
    def state(job: Name) -> JobState:
        """How far a job has come."""
        return server.state_of(worker.get(job))

    @app.get("/api/jobs/{job}/events", tags=["jobs"], response_class=StreamingResponse)
    async def events(job: Name) -> StreamingResponse:
        """Server-sent events, from the first on: waiting, started, input, method, result, refused, and the end.

        When the last watcher goes away before the end, the job is cancelled.
        """
        return StreamingResponse(_event_stream(worker.get(job), worker), media_type="text/event-stream")

    @app.delete("/api/jobs/{job}", tags=["jobs"])
    def cancel(job: Name) -> JobState:
        """Stop a job; what is ready stays."""
        found = worker.get(job)
        worker.cancel(found)
        return server.state_of(found)

    @app.post("/api/jobs/{job}/measure", status_code=202, tags=["jobs"])
    def measure(job: Name, wanted: Metric, request: Request) -> JobState:
        """Measure the explanations of a job that has ended, as a job of its own: a scoreboard with the curve."""
        from whence.core import registry

        of = worker.get(job)
        if of.kind != "explain" or not of.ended or not of.results:
            raise ValueError("only a run that has ended and has explanations can be measured")
        registry.resolve("metric", wanted.metric)
        return server.state_of(server.add("measure", Measure(of, wanted.metric), request))

    @app.get("/api/load", tags=["jobs"])
    def load() -> dict[str, int]:
        """How many jobs wait, run and are kept."""
        return worker.load


async def _event_stream(job: Job, worker: Worker) -> AsyncIterator[bytes]:
    """The events of a job as they come; the job is cancelled when its last watcher has gone."""
    happened, leave = job.watch()
    told = 0
    try:
        while True:
            happened.clear()
            while told < len(job.events):
                event = job.events[told]
                yield f"id: {told}\nevent: {event['event']}\ndata: {json.dumps(event)}\n\n".encode()
                told += 1
            if job.ended and told == len(job.events):
                return
            try:
                await asyncio.wait_for(happened.wait(), HEARTBEAT)
            except TimeoutError:
                yield b": still here\n\n"
    finally:
        leave()
        if not job.ended and not job.watchers:
            worker.cancel(job)


def _add_results(app: FastAPI, server: Server) -> None:
    worker = server.worker

    @app.get("/api/jobs/{job}/results/{which}/fragment", tags=["results"], response_class=HTMLResponse)
    def fragment(job: Name, which: Name) -> Response:
        """A result as HTML to stand inside a page that has the style sheet and script of /assets."""
        result = server.result_of(worker.get(job), which)
        return Response(display.fragment(result), media_type="text/html; charset=utf-8")

    @app.get("/api/jobs/{job}/results/{name}", tags=["results"], response_class=Response)
    def download(job: Name, name: Name) -> Response:
        """A result as a file: `0.json`, `0.html`, `0.png`, `0.svg`, `0.pdf`, or `all.pdf` for all methods."""
        which, dot, ending = name.rpartition(".")
        if dot + ending not in KINDS:
            raise ValueError(f"a result is fetched as {', '.join(KINDS)}, not as {name[:40]!r}")
        result = server.result_of(worker.get(job), which)
        headers = {"Content-Disposition": f'attachment; filename="whence-{which}.{ending}"'}
        return Response(_written(result, dot + ending), media_type=KINDS[dot + ending], headers=headers)

    @app.get("/api/jobs/{job}/changes/{before}", tags=["results"])
    def changed(job: Name, before: Name) -> dict[str, Any]:
        """What changed from one run to another: predictions, and scores token by token."""
        return changes(worker.get(job), worker.get(before))


def _written(result: Any, ending: str) -> bytes:
    """The bytes of a file that `display.write` makes."""
    with tempfile.TemporaryDirectory(prefix="whence-serve-") as folder, _drawing:
        file = Path(folder) / f"result{ending}"
        display.write(result, file)
        return file.read_bytes()


def _add_page(app: FastAPI) -> None:
    """The page, its style sheets and scripts, and a plain list of the routes."""
    static = files("whence.web") / "static"

    @app.get("/", include_in_schema=False)
    def page() -> Response:
        return HTMLResponse((static / "app.html").read_text(encoding="utf-8"))

    @app.get("/static/{name}", include_in_schema=False)
    def own(name: Name) -> Response:
        if name not in STATIC:
            raise Gone("there is no such file here")
        return Response((static / name).read_text(encoding="utf-8"), media_type=STATIC[name])

    @app.get("/assets/{name}", include_in_schema=False)
    def asset(name: Name) -> Response:
        if name not in ASSETS:
            raise Gone("there is no such file here")
        return Response(display.assets()[name], media_type=ASSETS[name])

    @app.get("/favicon.ico", include_in_schema=False)
    def icon() -> Response:
        return Response(status_code=204)

    @app.get("/api/docs", include_in_schema=False)
    def docs() -> Response:
        return HTMLResponse(_listing(app.openapi()))


def _listing(description: dict[str, Any]) -> str:
    """The routes of an OpenAPI description as a page that needs no network."""
    rows = []
    for path, verbs in description["paths"].items():
        for verb, facts in verbs.items():
            said = html.escape(facts.get("description", "")).replace("\n", " ")
            rows.append(f"<tr><th><code>{verb.upper()} {html.escape(path)}</code></th><td>{said}</td></tr>")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>The API of whence serve</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<link rel="stylesheet" href="/assets/style.css"><link rel="stylesheet" href="/static/app.css"></head><body>'
        '<main class="whence"><h1>The API of whence serve</h1><p class="lead">Everything that the page does '
        'goes through these addresses; <a href="/api/openapi.json">the OpenAPI description</a> has what each takes and '
        'gives. Errors are one sentence: <code>{"error": "..."}</code>.</p><table class="facts routes">'
        + "".join(rows)
        + "</table>"
        '<p><a href="/">to the app</a></p></main></body></html>'
    )


def _bytes_of_a_picture() -> dict[str, Any]:
    """The body of an upload, for the OpenAPI description."""
    return {
        "requestBody": {"required": True, "content": {"image/*": {"schema": {"type": "string", "format": "binary"}}}}
    }
