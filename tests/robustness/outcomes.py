"""The rule by which a case is judged: right, a documented one-sentence error, or a failure of one of four kinds."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

import whence
from whence.model.loan import difference
from whence.model.subject import Subject

SOURCE = str(Path(whence.__file__).parent)
# Modules with functions that cases hand to whence as their own: encoders, targets, options.
CALLERS = (
    "families.py",
    "target_strategies.py",
    "option_strategies.py",
    "call_cases.py",
    "audit_cases.py",
    "fault_cases.py",
)
SECONDS = 60.0  # after which a case counts as a hang; on a slow machine a case takes a few seconds
LETTERS = 2000  # the most letters of a message, which may quote what the caller wrote
SENTENCES = (ValueError, TypeError, FileNotFoundError, ImportError)
VERDICTS = ("right", "refused", "raw", "wrong", "hang", "changed")
FAILURES = VERDICTS[2:]


class Wrong(Exception):
    """A result that is not right; one sentence says why."""


class Refused(Exception):
    """A refusal that is no exception of whence, such as the exit code of a command."""


class Hang(BaseException):
    """A case that ran longer than it may; not an `Exception`, so that no code on the way catches it."""


class Injected(Exception):
    """An error of the caller's own code, which whence must let through."""


class Interrupted(KeyboardInterrupt):
    """A user's Ctrl-C at a chosen moment."""


@dataclass(frozen=True)
class Case:
    """One odd call, how a caller would write it, and what to look at when it returns."""

    area: str
    written: str
    call: Callable[[], Any]
    check: Callable[[Any], None] = lambda result: None
    subjects: tuple[Subject, ...] = ()  # the models that must be given back as they were

    def __repr__(self) -> str:
        return self.written


@dataclass(frozen=True)
class Outcome:
    """The verdict on a case, with its message and place."""

    verdict: str
    message: str = ""
    where: str = ""  # the last line of whence that was running: it tells one failure from another

    @property
    def failed(self) -> bool:
        """Whether the case is neither right nor refused with a sentence."""
        return self.verdict in FAILURES


class Failure(AssertionError):
    """A case that failed, for hypothesis and pytest."""

    def __init__(self, case: Case, outcome: Outcome) -> None:
        super().__init__(f"{outcome.verdict}: {outcome.message} [{outcome.where}] in {case.written}")
        self.case, self.outcome = case, outcome


def outcome(case: Case, seconds: float = SECONDS) -> Outcome:
    """Run a case and judge it: first what it came to, then whether the model and the process are as they were."""
    before = world(case.subjects)
    try:
        with time_limit(seconds):
            found = _judged(case)
    except Hang as hang:
        found = Outcome("hang", f"still running after {seconds:g} seconds", _where(hang))
    changed = difference(before, world(case.subjects))
    return (
        Outcome("changed", f"{changed} changed ({found.verdict}: {found.message})", found.where) if changed else found
    )


def must_hold(case: Case, seconds: float = SECONDS) -> Outcome:
    """The outcome of a case; an error if it failed."""
    found = outcome(case, seconds)
    if found.failed:
        raise Failure(case, found)
    return found


def _judged(case: Case) -> Outcome:
    """The verdict on a call: an error that is no sentence is raw; so is any error of the check of the result."""
    try:
        result = case.call()
    except Hang:
        raise
    except Wrong as wrong:
        return Outcome("wrong", str(wrong), _where(wrong))
    except BaseException as error:
        why = no_sentence(error)
        shown = f"{type(error).__name__}: {error}"[:500]
        return Outcome("raw", f"{why}: {shown}", _where(error)) if why else Outcome("refused", shown, _where(error))
    try:
        case.check(result)
    except Hang:
        raise
    except Refused as refusal:
        return Outcome("refused", str(refusal)[:500])
    except Wrong as wrong:
        return Outcome("wrong", str(wrong), _where(wrong))
    except BaseException as error:
        return Outcome("raw", f"looking at the result: {type(error).__name__}: {error}"[:500], _where(error))
    return Outcome("right")


def no_sentence(error: BaseException) -> str:
    """Why an error is not a documented one-sentence error; empty when it is one.

    Its type is one of a few, or made by whence of one of them; a line of whence raised it; its message is one line that
    can be read. What the operating system says of a file that the caller named, and what the caller's own function
    raised, are right too.
    """
    if isinstance(error, (Injected, Interrupted)) or _of_the_caller(error):
        return ""
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        return ""
    own = type(error).__module__.startswith("whence.") and isinstance(error, SENTENCES)
    if type(error) not in SENTENCES and not own:
        return "the type is none that is documented"
    if not _frames(error)[-1:] or not _frames(error)[-1].startswith(SOURCE):
        return "it was raised outside of whence"
    message = str(error)
    if not message.strip() or message != message.strip() or len(message.splitlines()) != 1:
        return "the message is not one line"
    if len(message) > LETTERS:
        return f"the message has {len(message)} letters"
    return ""


def _of_the_caller(error: BaseException) -> bool:
    """Whether a function of the caller, called by whence itself, raised the error."""
    files = _frames(error)
    last = max((number for number, file in enumerate(files) if file.startswith(SOURCE)), default=len(files))
    return last + 1 < len(files) and Path(files[last + 1]).name in CALLERS


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `Hang` in the main thread when the time is up."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise Hang

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def world(subjects: Sequence[Subject]) -> dict[str, Any]:
    """All that a call must leave as it was: the models, by the content of their tensors, and the process."""
    name, keys, *rest = np.random.get_state()
    prints: dict[str, Any] = {
        "random state of Python": random.getstate(),
        "random state of NumPy": (name, tuple(keys), *rest),
        "random state of torch": torch.get_rng_state().numpy().tobytes(),
        "gradient mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "default dtype": torch.get_default_dtype(),
        "number of threads": torch.get_num_threads(),
        "torch function modes": torch._C._len_torch_function_stack(),
        "global module hooks": len(torch.nn.modules.module._global_forward_hooks),
        "error handling of NumPy": np.geterr(),
        "working directory": os.getcwd(),
    }
    for number, subject in enumerate(subjects):
        prints |= {f"{key} of model {number}": value for key, value in subject.fingerprint(full=True).items()}
    return prints


def _frames(error: BaseException) -> list[str]:
    """The files of an error's traceback, outermost first."""
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


def _where(error: BaseException) -> str:
    """The last line of whence in an error's traceback, else its last line of all."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(SOURCE)] or frames
    return f"{Path(own[-1].filename).name}:{own[-1].name}" if own else ""
