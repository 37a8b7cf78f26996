"""The most that a request may ask for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The bounds of the server; a request beyond one is refused with a sentence that names the bound."""

    body: int = 16 * 2**20  # bytes of one request
    letters: int = 20_000  # of one part of a text
    features: int = 1_024  # tokens and patches of one input
    pixels: int = 40_000_000  # of a picture, before it is decoded
    pictures: int = 16  # uploads that are kept, the newest ones
    methods: int = 12  # in one run
    spec: int = 300  # letters of a method with its options, or of a target
    seconds: float = 120.0  # that one job may run
    unseen: float = 20.0  # seconds after which a job that nobody watches or asks about is cancelled
    waiting: int = 32  # jobs in the queue
    waiting_per_client: int = 12  # unfinished jobs of one address
    kept_jobs: int = 64  # whose results can still be asked for
    kept_bytes: int = 256 * 2**20  # of the results of those jobs, roughly
    attention_bytes: int = 64 * 2**20  # of the attention weights of one input
    reading: float = 20.0  # seconds for a request to arrive
    connections: int = 128  # open at a time
