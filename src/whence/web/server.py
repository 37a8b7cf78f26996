"""Listening: a socket of this machine, and uvicorn on it."""

from __future__ import annotations

import ipaddress
import socket
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import uvicorn

from whence.web.app import create
from whence.web.catalogue import Catalogue
from whence.web.limits import Limits

TRIED = 20  # how many ports after the usual one are tried if that is taken


def folders_by_name(models: Sequence[Path]) -> dict[str, Path]:
    """Folders of models by the names that requests may use: that of the folder, numbered where it recurs."""
    found: dict[str, Path] = {}
    for model in models:
        if not (model / "config.json").is_file():
            raise ValueError(f"--model takes the folder of a model, and {str(model)!r} has no config.json")
        own = model.resolve().name or "model"
        name = next(n for n in (own, *(f"{own}-{number}" for number in range(2, 1000))) if n not in found)
        found[name] = model
    return found


def listening(host: str, port: int | None, remote: bool) -> socket.socket:
    """A socket that listens, on this machine alone unless `remote`; at the next free port if none is named."""
    address = "127.0.0.1" if host == "localhost" else host
    try:
        loopback = ipaddress.ip_address(address).is_loopback
    except ValueError:
        raise ValueError(f"--host takes the address of a network card, as 127.0.0.1, not {host!r}") from None
    if not loopback and not remote:
        raise ValueError(
            f"{host} can be reached from other machines, and anybody there could use this server: it has no passwords; "
            "add --allow-remote if that is wanted"
        )
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    error: OSError | None = None
    for candidate in [8642 + n for n in range(TRIED)] if port is None else [port]:
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((address, candidate))
            found.listen(128)
        except OSError as refused:
            found.close()
            error = refused
            continue
        return found
    raise OSError(f"no port could be opened at {host} ({error}); name another one with --port")


def serve(
    models: Sequence[Path] = (),
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    remote: bool = False,
    hosts: Sequence[str] = (),
    limits: Limits | None = None,
    runs: Sequence[Path] = (),
    open_page: bool = False,
    ready: Callable[[str], None] = print,
) -> None:
    """Serve until interrupted; `ready` is told the address once requests are taken."""
    bounds = limits or Limits()
    app = create(Catalogue(folders_by_name(models)), bounds, hosts=tuple(hosts), remote=remote, runs=tuple(runs))
    opened = listening(host, port, remote)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{opened.getsockname()[1]}/"
    ready(address)
    if open_page:
        webbrowser.open(address)
    configured(app, bounds).run(sockets=[opened])


def configured(app: Any, limits: Limits) -> uvicorn.Server:
    """The server of an app: no web sockets, no proxies, no logs of requests, and not too many connections."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        limit_concurrency=limits.connections,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=3,
        h11_max_incomplete_event_size=64 * 1024,
    )
    return uvicorn.Server(config)
