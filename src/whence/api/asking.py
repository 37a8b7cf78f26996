"""The verbs that question a model: its concepts, what excites it, whether attention explains it, effects of names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whence.api.checks import check_call, check_specs
from whence.api.provenance import stamped
from whence.concepts.activations import Reading
from whence.concepts.maximising import Search, maximised
from whence.concepts.probes import ProbeKind
from whence.concepts.sensitivity import Settings as ConceptSettings
from whence.concepts.sensitivity import Test, sensitivity
from whence.core.audits import Audit
from whence.core.maximisations import Maximisation
from whence.core.name_audits import NameAudit
from whence.core.sensitivities import Sensitivity
from whence.core.shortcut_audits import ShortcutAudit
from whence.debate.auditing import audited
from whence.debate.names import Settings as NameSettings
from whence.debate.names import audit_names as names_audited
from whence.debate.places import AttentionReading, Heads, Layers, Rows
from whence.debate.shortcuts import Settings as ShortcutSettings
from whence.debate.shortcuts import audit_shortcuts as shortcuts_audited
from whence.measure.call_types import Data, TargetLike
from whence.model.masked_inputs import Way
from whence.model.subject import Subject


@stamped
def concept(
    subject: Subject,
    concepts: Mapping[str, Data] | Sequence[str | Path] | str | Path,
    target: TargetLike,
    data: Data | None = None,
    *,
    random: Data | None = None,
    layers: str | int | Sequence[str | int] = "all",
    at: Reading = "deciding",
    probe: ProbeKind = "difference",
    relative: bool = False,
    counter_sets: int = 10,
    random_concepts: int | None = None,
    size: int = 50,
    test: Test = "rank",
    level: float = 0.05,
    seed: int = 0,
    batch_size: int | None = None,
    truncate: bool = False,
    progress: bool = False,
) -> Sensitivity:
    """TCAV: whether the target grows along concepts, at every layer, and more than along random ones.

    `concepts` names sets of examples: a dict of lists, folders or files (a text per line, or a table), or a list of
    folders, files and names that `zoo.concepts` draws, `size` examples each. `data` are examples of the class (those
    with its label, where there are labels), `random` ones that show nothing in particular; embedded models have both.
    A layer is the state that enters a block, by its number, or a module, by its name; it is read `at` the tokens that
    the output reads ("deciding", as [CLS]), as the "mean" of all tokens, or "flat", all tokens side by side; more than
    2 GiB of states are refused. Each concept is told apart from `counter_sets` random sets, or from the other concepts
    (`relative`). p is the rank of the concept's mean derivative among `random_concepts`, with Holm's correction over
    concepts and layers; `test="t"` is the paper's test, whose p is too small.
    """
    given: dict[str, Any] = {"at": at, "probe": probe, "relative": relative, "counter_sets": counter_sets, "size": size}
    given |= {"random_concepts": random_concepts, "test": test, "level": level, "seed": seed}
    given |= {"batch_size": batch_size, "truncate": truncate, "progress": progress}
    check_call(subject)
    return sensitivity(subject, concepts, target, data, random, layers, ConceptSettings(**given))


@stamped
def maximize(
    subject: Subject,
    units: TargetLike | list[TargetLike],
    data: Data | None = None,
    *,
    steps: int = 256,
    rate: float = 0.1,
    views: int = 8,
    jitter: int | None = None,
    colour: float = 0.5,
    tv: float = 0.3,
    length: int = 8,
    seed: int = 0,
    progress: bool = False,
) -> Maximisation:
    """Inputs made to excite units as much as can be: classes, neurons ("mlp:3:17"), heads ("head:3:2").

    Channels and directions are units, too; that of a head is the length of its output before the output projection.
    A picture starts as noise; each of `steps` sees `views` of it, shifted by up to `jitter` pixels and in `colour`,
    both fading to 0 over the second half of the search, while total variation is held down by the share `tv`. A text of
    `length` tokens is searched among embeddings and then turned into the nearest words; the result says how much the
    target loses by that. A state is read as the mean of all tokens unless the unit says where. The result also shows
    the examples of `data` that excite a unit most.
    """
    check_call(subject)
    search = Search(steps, rate, views, jitter, colour, tv, length, seed, progress)
    return maximised(subject, units, data, search)


@stamped
def audit(
    subject: Subject,
    data: Data,
    experiments: Sequence[str] | None = None,
    *,
    layers: Layers | None = None,
    heads: Heads | None = None,
    rows: Rows | None = None,
    special: bool | None = None,
    reading: AttentionReading | None = None,
    train: Data | None = None,
    seeds: int | None = None,
    limit: int | None = None,
    seed: int = 0,
    truncate: bool = False,
    resume: str | Path | None = None,
    progress: bool = False,
) -> Audit:
    """Is attention an explanation here? The experiments of the debate on a model and a data set: an Audit.

    `experiments` are names, or names with options as "adversary(epsilon=0.05, layers='all')"; `list_experiments` has
    them, and all that edit attention are run if none is named. `layers`, `heads`, `rows` and `special` say which
    attention is read and edited, for all experiments that do not say so themselves: the "last" layer, "each" in
    turn, "all" at once, or numbers; heads "together", one by one ("each") or numbers; the rows of the "deciding" tokens
    or "all"; whether special tokens take part; `reading` "rollout" where weights are only read. Decisions are those
    that the model makes; labels tell which are right.
    `train` are labelled examples for experiments that train copies of the model again (its last block and what follows
    it, unless they say `fresh`), from so many `seeds`; where no experiment is named, these are run, too.
    `resume` names a file to which results are added every few examples; a run that was stopped continues from it.
    """
    check_call(subject, limit=limit, seed=seed, truncate=truncate, resume=resume, progress=progress)
    if experiments is not None:
        check_specs("experiments", experiments)
    options = {"layers": layers, "heads": heads, "rows": rows, "special": special, "reading": reading, "seeds": seeds}
    shared = {name: value for name, value in options.items() if value is not None}
    settings: dict[str, Any] = {"train": train, "limit": limit, "seed": seed, "truncate": truncate}
    return audited(subject, data, experiments, shared, resume=resume, progress=progress, **settings)


@stamped
def audit_names(
    subject: Subject,
    data: Data,
    names: Mapping[str, Sequence[str]] | str | Path,
    *,
    target: TargetLike = None,
    method: str = "lrp",
    find: Sequence[str] | None = None,
    limit: int = 100,
    per_group: int = 20,
    draws: int = 2000,
    level: float = 0.05,
    seed: int = 0,
    batch_size: int | None = None,
    truncate: bool = False,
    progress: bool = False,
) -> NameAudit:
    """Does a name move the decision? Every name in every sentence that has a place for one: a NameAudit.

    `names` is a table with a column `name` and one per kind of group (origin, gender, ...), a dict group -> names, or
    "faker" for first names of that package, as "faker:en_US,tr_TR"; any words with groups will do. At most `per_group`
    are drawn from every group. Sentences are those of `data` that hold `{name}`, or one of the names to `find` (those
    of the list if None), which is then exchanged. The relevance of a name is what `method` gives to its tokens. Groups
    are compared by `draws` permutations of names between them, with Holm's correction.
    """
    given: dict[str, Any] = {"method": method, "limit": limit, "per_group": per_group, "draws": draws, "level": level}
    given |= {"seed": seed, "batch_size": batch_size, "truncate": truncate, "progress": progress}
    check_call(subject)
    return names_audited(subject, data, names, target, find, NameSettings(**given))


@stamped
def audit_shortcuts(
    subject: Subject,
    data: Data,
    *,
    method: str = "lrp",
    least: int = 3,
    candidates: int = 25,
    contexts: int = 50,
    alone: float = 0.5,
    mask: Way = "auto",
    limit: int = 1000,
    level: float = 0.05,
    seed: int = 0,
    batch_size: int | None = None,
    truncate: bool = False,
    progress: bool = False,
) -> ShortcutAudit:
    """Which words act as shortcuts? All that stand in `least` texts, the most suspicious first: a ShortcutAudit.

    `method` attributes every text. A word that has the greatest score of its texts more often than chance (exact, with
    Holm's correction) is a candidate. The first `candidates` are tried: hidden (by `mask`) in up to `contexts` of their
    texts, put into as many texts that are decided otherwise, and compared with the labels. A candidate is a "shortcut"
    if it turns more than the share `alone` of the texts it is put into, with its whole interval, and if it misleads
    where labels say otherwise; it is a "suspect" if only one of the two can be shown, for example without labels.
    """
    given: dict[str, Any] = {"method": method, "least": least, "candidates": candidates, "contexts": contexts}
    given |= {"alone": alone, "mask": mask, "limit": limit, "level": level, "seed": seed}
    given |= {"batch_size": batch_size, "truncate": truncate, "progress": progress}
    check_call(subject)
    return shortcuts_audited(subject, data, ShortcutSettings(**given))
