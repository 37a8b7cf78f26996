"""States of modules are noted and exchanged, in whatever form a module returns them; hooks are taken off again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from families import fresh, plain_inputs
from whence.model.watching import Site, hooked, states_at


@pytest.mark.parametrize(
    ("module", "key"), [("bert.encoder", "last_hidden_state"), ("bert.encoder.layer.0", -1), ("bert", "pooler_output")]
)
def test_a_state_is_exchanged_in_any_form_of_output(module: str, key: Any) -> None:
    made = fresh("bert")
    tensors, site = plain_inputs(made, made.inputs[0]), Site("text", "output", module, key=key)

    def by_hand(m: nn.Module, args: Any, out: Any) -> Any:
        if isinstance(out, Tensor):
            return out * 2
        return type(out)(**{name: part * 2 if name == key else part for name, part in out.items()})

    with torch.no_grad():
        plain = made.model(**tensors).logits
        with states_at(made.model, [site], {site: lambda state: state * 2}) as states:
            changed = made.model(**tensors).logits
        handle = made.model.get_submodule(module).register_forward_hook(by_hand)
        expected = made.model(**tensors).logits
        handle.remove()
        again = made.model(**tensors).logits
    assert torch.equal(changed, expected) and not torch.equal(changed, plain) and torch.equal(again, plain)
    assert states[site].isfinite().all() and not made.model.get_submodule(module)._forward_hooks


@pytest.mark.parametrize("kind", [tuple, list])
def test_a_state_among_several_is_exchanged_in_its_place(kind: type) -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return kind([x, x + 1])

    model, site = nn.Sequential(Two()), Site("", "output", "0", key=1)
    with states_at(model, [], {site: lambda state: state * 10}):
        out = model(torch.ones(2, 3))
    assert type(out) is kind and torch.equal(out[0], torch.ones(2, 3)) and torch.equal(out[1], torch.full((2, 3), 20.0))


def test_hooks_are_taken_off_after_an_error() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ZeroDivisionError), hooked([("", model)], lambda *_: None, lambda *_: None):
        raise ZeroDivisionError
    assert not model._forward_hooks and not model._forward_pre_hooks
