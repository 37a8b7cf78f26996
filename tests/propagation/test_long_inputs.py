"""Long inputs: folds give the same scores as a trace that keeps all attention, without keeping it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import whence
from families import family, fresh
from whence.model.loan import difference, fingerprint
from whence.model.tap import Tap
from whence.propagation import fused_attention, long_inputs

FUSED = ["bert", "albert", "vit", "gpt2", "llama", "gemma3", "modernbert", "torch-sdpa"]
METHODS = [
    "gae",
    "gae(start_layer=1)",
    "rollout",
    "rollout(read='received_sum')",
    "grad_sam",
    "grad_sam(read='received')",
    "attention_x_gradient",
    "attention_x_gradient(read='query', positive=True)",
    "lrp",
    "attnlrp",
]


def both_ways(
    monkeypatch: pytest.MonkeyPatch, s: whence.Subject, inputs: list[Any], method: str
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Scores from a trace that keeps all attention, and from tiles of a few rows."""
    monkeypatch.setattr(long_inputs, "LONG_BYTES", 2**62)
    kept = [a.scores for a in whence.explain(s, inputs, method=method)]
    monkeypatch.setattr(long_inputs, "LONG_BYTES", 0)
    monkeypatch.setattr(fused_attention, "TILE_BYTES", 4 * len(inputs) * 20 * 3)
    return kept, [a.scores for a in whence.explain(s, inputs, method=method)]


def wrapped(name: str, made: Any = None) -> whence.Subject:
    made = made or family(name)
    return whence.wrap(made.model, made.processor, **made.kwargs)


def folds(s: whence.Subject) -> bool:
    """Whether the attention of the inputs was folded in the backward pass instead of being kept."""
    return any(found._known.get("the fused path makes all attention", False) for found in s._discoveries.values())


def far(kept: list[np.ndarray], again: list[np.ndarray]) -> float:
    return max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in zip(kept, again, strict=True))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", FUSED)
def test_the_same_scores(name: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    s = wrapped(name)
    kept, again = both_ways(monkeypatch, s, family(name).inputs[:3], method)
    assert folds(s)
    assert far(kept, again) <= 1e-5  # the fused and the eager path differ by rounding


@pytest.mark.parametrize("method", ["attention_x_gradient(read='query')", "lrp(rules='ln')", "lrp(epsilon=0.1)"])
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_the_same_scores_under_other_options(name: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, again = both_ways(monkeypatch, wrapped(name), family(name).inputs[:3], method)
    assert far(kept, again) <= 1e-5


@pytest.mark.parametrize("name", ["bert", "albert"])
def test_the_same_scores_in_double_precision(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = fresh(name)
    made.model.double()
    kept, again = both_ways(monkeypatch, wrapped(name, made), made.inputs[:3], "gae")
    assert far(kept, again) <= 1e-10


@pytest.mark.parametrize("name", ["gemma2", "gpt-oss", "deberta-v2", "torch-encoder", "bart", "lxmert"])
def test_models_whose_fused_path_is_another_or_none_keep_the_trace(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    s = wrapped(name)
    kept, again = both_ways(monkeypatch, s, family(name).inputs[:2], "gae")
    assert not folds(s) and far(kept, again) == 0


def test_no_attention_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    s = wrapped("bert")
    inputs = family("bert").inputs[:2]
    monkeypatch.setattr(long_inputs, "LONG_BYTES", 0)
    whence.explain(s, inputs, method="gae")
    recorded = []
    monkeypatch.setattr(Tap, "_multiply", lambda *anything: recorded.append(anything))
    whence.explain(s, inputs, method="gae")
    assert not recorded


def test_a_wrong_tile_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: a causal mask that is forgotten changes the scores."""
    tiles = fused_attention.Attended.tiles
    monkeypatch.setattr(
        fused_attention.Attended, "tiles", lambda block, *given: tiles(replace(block, causal=False), *given)
    )
    kept, again = both_ways(monkeypatch, wrapped("gpt2"), family("gpt2").inputs[:1], "rollout")
    assert far(kept, again) > 1e-2


def test_the_model_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    made = fresh("bert")
    s = wrapped("bert", made)
    whence.explain(s, made.inputs[:2], method="gae")
    before = fingerprint(made.model, full=True)
    monkeypatch.setattr(long_inputs, "LONG_BYTES", 0)
    whence.explain(s, made.inputs[:2], method="gae")
    assert not difference(before, fingerprint(made.model, full=True))


class Peak(TorchDispatchMode):
    """The most bytes of tensors made in this scope that were alive together."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self._made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self._made = {key: found for key, found in self._made.items() if not found[0].expired()}
        self.most = max(self.most, sum(size for _, size in self._made.values()))
        return out


RECOMPUTED = ["gae", "gae(start_layer=1)", "grad_sam", "attention_x_gradient", "attention_x_gradient(read='query')"]


@pytest.mark.parametrize("method", RECOMPUTED)
@pytest.mark.parametrize("name", [name for name in FUSED if name != "torch-sdpa"])
def test_layers_run_again_give_equal_scores(name: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_inputs, "LONG_BYTES", 0)
    s = wrapped(name)
    inputs = list(family(name).inputs)
    kept = whence.explain(s, inputs, method=method)
    before = fingerprint(s.model, full=True)
    s.recomputes = True
    again = whence.explain(s, inputs, method=method)
    assert difference(before, fingerprint(s.model, full=True)) == ""
    assert all(np.array_equal(a.scores, b.scores) for a, b in zip(kept, again, strict=True))


def test_without_modules_for_layers_none_are_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_inputs, "LONG_BYTES", 0)
    s = wrapped("torch-sdpa")
    s.recomputes = True
    with pytest.raises(ValueError, match=r"no layers were found in .*; set recomputes to False"):
        whence.explain(s, family("torch-sdpa").inputs[0], method="gae")


def test_layers_run_again_take_less_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of twelve layers one is kept at a time, with the states between them."""
    monkeypatch.setattr(fused_attention, "TILE_BYTES", 4000)
    monkeypatch.setattr(long_inputs, "LONG_BYTES", 0)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=96, num_hidden_layers=12, num_attention_heads=4
    )
    model = transformers.LlamaForCausalLM(config).eval().requires_grad_(False)
    ids = np.arange(100) % 50
    given = {
        "tensors": {"input_ids": ids, "attention_mask": np.ones_like(ids)},
        "features": {"text": list(map(str, ids))},
    }
    s = whence.wrap(model, encode=lambda raw: given, output=lambda outputs: outputs.logits[:, -1])
    found = []
    for s.recomputes in (False, True):
        whence.explain(s, 0, "gae", 0)
        with Peak() as peak:
            scores = whence.explain(s, 0, "gae", 0).scores
        found.append((scores, peak.most))
    (scores, most), (again, less) = found
    assert np.array_equal(scores, again) and less < 0.7 * most


ROWS = {"prompt": "the film was good. nobody laughed.", "continuation": " who was singing the old man"}
OF_ROWS = [
    "gae(start_layer=1)",
    "gae(sinks='exclude')",
    "rollout",
    "rollout(sinks='stay')",
    "grad_sam",
    "attention_x_gradient",
]


@pytest.mark.parametrize("method", OF_ROWS)
@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3", "mistral"])
def test_rows_of_generated_text_share_one_forward_pass(name: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    s = wrapped(name)
    kept, again = both_ways(monkeypatch, s, [ROWS], method)
    assert kept[0].shape[0] > 4 and folds(s)
    assert far(kept, again) <= 1e-5
    monkeypatch.setattr(long_inputs, "_folds", lambda subject, batch, aim, fold_of: [fold_of(batch)])
    alone = [a.scores for a in whence.explain(s, [ROWS], method=method)]  # every row's text by itself
    assert far(alone, again) <= 1e-5


def test_the_number_of_passes_over_the_text_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    s, sizes = wrapped("llama"), list[int]()
    monkeypatch.setattr(long_inputs, "LONG_BYTES", 0)
    whence.explain(s, ROWS, method="grad_sam")  # what needs to be known of the model is known from here on
    hook = s.model.register_forward_hook(lambda module, args, out: sizes.append(len(out.logits)))
    rows = len(whence.explain(s, ROWS, method="grad_sam").scores)
    hook.remove()
    assert rows > 4 and sum(sizes) <= 2  # one to look for sinks, one for all rows
