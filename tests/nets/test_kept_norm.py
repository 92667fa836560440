"""Batch norms by kept statistics: what a GPU does by a kernel of ours is what torch does."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from askew.nets.triton.kept_norm import KeptNorm2d, quicken_norms


def network() -> nn.Sequential:
    torch.manual_seed(0)
    body = nn.Sequential(
        nn.Conv2d(3, 70, 3),
        nn.BatchNorm2d(70),
        nn.ReLU(),
        nn.Conv2d(70, 8, 3),
        nn.BatchNorm2d(8, affine=False),
    )
    for norm in (body[1], body[4]):
        norm.running_mean = torch.randn_like(norm.running_mean)
        norm.running_var = torch.rand_like(norm.running_var) + 0.5
    return body.eval()


def gradients(body: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    out = body(x)
    weigh = torch.sin(torch.arange(out.numel(), device=out.device)).view(out.shape)
    return [out, *torch.autograd.grad((out.float() * weigh).sum(), [x, *body.parameters()])]


def test_weights_keep_their_names_and_values() -> None:
    body = network()
    before = copy.deepcopy(body.state_dict())
    quicken_norms(body)
    assert [type(m) for m in body].count(KeptNorm2d) == 2
    assert body.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in body.state_dict().items())


@pytest.mark.parametrize("training", [False, True])
def test_without_a_gpu_value_and_gradient_are_torchs_own(training: bool) -> None:
    body, x = network().train(training), torch.randn(4, 3, 9, 9)
    quick = copy.deepcopy(body)
    quicken_norms(quick)
    for found, wanted in zip(gradients(quick, x), gradients(body, x), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "apart"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_on_a_gpu_value_and_gradient_are_torchs_to_rounding(
    dtype: torch.dtype, apart: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    body = network().cuda().to(memory_format=torch.channels_last)
    x = torch.randn(40, 3, 33, 29, device="cuda").contiguous(memory_format=torch.channels_last)
    quick = copy.deepcopy(body)
    quicken_norms(quick)
    with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
        wanted, found = gradients(body, x), gradients(quick, x)
    images = torch.randn(2, 70, 5, 5, device="cuda").contiguous(memory_format=torch.channels_last)
    assert type(quick[1](images).grad_fn).__name__ == "KeptNormBackward", "the kernel was refused"
    for one, other in zip(found, wanted, strict=True):
        assert (one.float() - other.float()).norm() <= apart * other.float().norm()
