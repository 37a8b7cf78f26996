"""Linear layers of many rows, beside torch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from whence.propagation import products


@pytest.mark.parametrize("onednn", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(7, 12), (2, 3, 12), (0, 12)])
def test_linear(shape: tuple[int, ...], dtype: torch.dtype, onednn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever library multiplies, the numbers are those of `F.linear`, also for views that are not contiguous."""
    if onednn and not torch.backends.mkldnn.is_available():
        pytest.skip("torch was built without oneDNN")
    monkeypatch.setattr(products, "LEAST", 0)
    monkeypatch.setattr(products, "_ONEDNN", onednn)
    made = torch.Generator().manual_seed(0)
    x = torch.randn(*shape, generator=made).to(dtype).requires_grad_()
    weight, bias = torch.randn(12, 5, generator=made).to(dtype).T, torch.randn(5, generator=made).to(dtype)
    for given in (x, x.flip(-1), x.mT.contiguous().mT):
        for b in (None, bias):
            out = products.linear(given, weight, b)
            assert not out.requires_grad and out.dtype == dtype
            torch.testing.assert_close(out, F.linear(given, weight, b).detach(), rtol=1e-5, atol=1e-5)


def test_few_rows_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that oneDNN makes for a new shape takes milliseconds, more than a small product does."""
    monkeypatch.setattr(products, "_ONEDNN", True)
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", None, raising=False)  # a call would raise
    x, weight = torch.ones(4, 8), torch.ones(3, 8)
    torch.testing.assert_close(products.linear(x, weight), F.linear(x, weight), rtol=0, atol=0)
