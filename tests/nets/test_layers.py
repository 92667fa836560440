"""Critics and stacks against their formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from askew.core.random import key
from askew.nets.heads import ConditionalCritic, Critic
from askew.nets.layers import Crop, Dropout, dense_stack
from askew.nets.network import Net


def hidden(critic: Critic, x: Tensor, step_key: int = 0) -> list[Tensor]:
    """What each of its dropouts lets through at a moment."""
    seen: list[Tensor] = []
    for module in critic.modules():
        if isinstance(module, Dropout):
            module.step_key.fill_(step_key)
            module.register_forward_hook(lambda m, args, out: seen.append(out))
    critic(x)
    return seen


# A critic


def test_a_critic_is_two_hidden_layers_and_one_logit_a_row() -> None:
    torch.manual_seed(0)
    critic = Critic(4, 6).double().eval()
    x = torch.randn(5, 4, dtype=torch.float64)
    A, a, B, b, c, e = (p.detach().numpy() for p in critic.parameters())
    h = np.maximum(np.maximum(x.numpy() @ A.T + a, 0) @ B.T + b, 0)
    assert (A.shape, B.shape, c.shape) == ((6, 4), (6, 6), (1, 6))
    np.testing.assert_allclose(critic(x).detach(), (h @ c.T + e)[:, 0])


def test_a_critic_drops_half_of_both_hidden_layers_in_training() -> None:
    critic = Critic(4, 500)
    with torch.no_grad():
        for p in critic.parameters():
            p.fill_(1.0)  # nothing is zero but what is dropped
    for h in hidden(critic, torch.ones(40, 4)):
        assert (h == 0).double().mean().item() == pytest.approx(0.5, abs=5 * 0.5 / 20_000**0.5)


def masks(number: int, step_key: int = 0) -> list[Tensor]:
    critic = Critic(4, 50, number)
    with torch.no_grad():
        for p in critic.parameters():
            p.fill_(1.0)
    return [h == 0 for h in hidden(critic, torch.ones(20, 4), step_key)]


def test_layers_critics_and_moments_have_masks_of_their_own() -> None:
    again, (first, second), (third, fourth), (later, _) = (
        masks(0),
        masks(0),
        masks(1),
        masks(0, step_key=12345),
    )
    assert torch.equal(again[0], first)
    different = [first, second, third, fourth, later]
    for i, a in enumerate(different):
        for b in different[:i]:
            assert (a == b).double().mean().item() == pytest.approx(0.5, abs=5 * 0.5 / 1000**0.5)


def test_a_critic_follows_its_network_s_clock() -> None:
    net = Net({"critic": Critic(4, 50)}, 4, split_norm=False)
    net.share_step_key()
    outputs = []
    for step_key in (3, 4, 3):
        net.set_step_key(torch.tensor(step_key))
        outputs.append(net["critic"](torch.ones(2, 4)))
    assert torch.equal(outputs[0], outputs[2])
    assert not torch.equal(outputs[0], outputs[1])


# A critic on features and probabilities


def joint(critic: ConditionalCritic, f: Tensor, p: Tensor) -> Tensor:
    """What the critic proper is given."""
    critic.critic = nn.Identity()  # type: ignore[assignment]
    return critic(f, p)


def test_a_conditional_critic_sees_each_feature_times_each_probability() -> None:
    f, p = (
        torch.tensor([[2.0, 3.0], [1.0, -1.0]]),
        torch.tensor([[0.1, 0.9, 0.0], [0.5, 0.25, 0.25]]),
    )
    seen = joint(ConditionalCritic(2, 3, hidden=4), f, p)
    want = [[0.2, 0.3, 1.8, 2.7, 0, 0], [0.5, -0.5, 0.25, -0.25, 0.25, -0.25]]
    np.testing.assert_allclose(seen, want, rtol=1e-6)


def test_a_conditional_critic_is_a_critic_of_that() -> None:
    critic = ConditionalCritic(2, 3, hidden=4).eval()
    f, p = torch.randn(5, 2), torch.rand(5, 3)
    outer = torch.stack([torch.outer(b, a).flatten() for a, b in zip(f, p, strict=True)])
    torch.testing.assert_close(critic(f, p), critic.critic(outer))
    assert critic(f, p).shape == (5,)


@pytest.mark.parametrize(("width", "classes", "columns"), [(512, 8, 4096), (241, 17, 1024)])
def test_above_4096_numbers_a_random_map_to_1024_takes_their_place(
    width: int, classes: int, columns: int
) -> None:
    critic = ConditionalCritic(width, classes, hidden=2)
    assert critic.random == (columns == 1024)
    assert critic(torch.randn(3, width), torch.rand(3, classes)).shape == (3,)
    assert joint(critic, torch.randn(3, width), torch.rand(3, classes)).shape == (3, columns)


def test_inner_products_after_the_random_map_are_those_before_on_average() -> None:
    torch.manual_seed(0)
    f, p = torch.randn(2, 20), torch.rand(2, 5).softmax(dim=1)
    f[1] += f[0]  # so that no product is near zero
    want = (f @ f.T) * (p @ p.T)
    grams = []
    for _ in range(100):
        seen = joint(ConditionalCritic(20, 5, hidden=2, most=99, columns=64), f, p)
        assert seen.shape == (2, 64)
        grams.append(seen @ seen.T)
    every = torch.stack(grams)
    error = every.std(dim=0) / 100**0.5
    assert ((every.mean(dim=0) - want).abs() < 4 * error).all()
    assert (error < 0.15 * want.abs()).all()


def test_the_random_map_is_saved_with_the_weights_and_not_trained() -> None:
    critic = ConditionalCritic(20, 5, hidden=2, most=99, columns=64)
    assert {"map_f", "map_p"} <= critic.state_dict().keys()
    assert all(name.startswith("critic.") for name, _ in critic.named_parameters())


# A stack


def test_a_stack_is_linear_norm_relu_so_many_times_and_keeps_the_width() -> None:
    torch.manual_seed(0)
    stack = dense_stack(4, 2).double()
    x = torch.randn(6, 4, dtype=torch.float64)
    want = x.numpy()
    for i in (0, 2):
        z = want @ stack[i].weight.detach().numpy().T + stack[i].bias.detach().numpy()
        want = np.maximum((z - z.mean(axis=0)) / np.sqrt(z.var(axis=0) + 1e-5), 0)
    np.testing.assert_allclose(stack(x).detach(), want, rtol=1e-9)
    assert not [m for m in stack.modules() if isinstance(m, Dropout)]


def test_a_stack_of_no_layers_is_the_identity() -> None:
    x = torch.randn(3, 4)
    assert dense_stack(4, 0)(x) is x


# --- crops ---


def pictures(n: int = 64, side: int = 12) -> Tensor:
    """Each pixel says where it is, so that a crop tells where it was cut."""
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    return torch.stack([y, x]).to(torch.uint8).expand(n, 2, side, side)


def test_a_crop_in_training_is_a_square_of_the_picture_flipped_or_not() -> None:
    crop = Crop(9).train()
    out = crop(pictures())
    assert out.shape == (64, 2, 9, 9)
    assert out.dtype == torch.uint8
    assert out.is_contiguous(memory_format=torch.channels_last)
    place = torch.arange(9)
    for ys, xs in out.long():
        assert torch.equal(ys, (ys[0, 0] + place)[:, None].expand(9, 9))
        columns = xs[0]
        assert torch.equal(columns, columns[0] + place) or torch.equal(columns, columns[0] - place)
        assert torch.equal(xs, columns.expand(9, 9))


def test_a_view_of_the_right_size_is_kept_and_a_picture_is_flipped_half_the_time() -> None:
    x, crop = pictures(64, 9), Crop(9).train()
    view = x.float()
    assert crop(view) is view
    flipped = [not torch.equal(one, other) for one, other in zip(crop(x), x, strict=True)]
    assert 16 < sum(flipped) < 48
    assert all(
        torch.equal(one, other.flip(2))
        for one, other, f in zip(crop(x), x, flipped, strict=True)
        if f
    )


def test_every_place_is_as_likely_and_half_are_flipped() -> None:
    crop = Crop(9).train()
    tops, flips = [], []
    for step_key in range(100):
        crop.step_key.fill_(key("moment", step_key))
        out = crop(pictures()).long()
        tops.append(out[:, 0, 0, 0])
        flips.append(out[:, 1, 0, 0] > out[:, 1, 0, -1])
    shares = torch.bincount(torch.cat(tops), minlength=4) / 6400
    assert shares.tolist() == pytest.approx([0.25] * 4, abs=0.03)
    assert torch.cat(flips).float().mean().item() == pytest.approx(0.5, abs=0.03)
    assert not torch.equal(tops[0], tops[1])


def test_a_crop_is_the_centre_out_of_training_and_repeatable_in_training() -> None:
    crop = Crop(8)
    assert torch.equal(crop.eval()(pictures()), pictures()[:, :, 2:10, 2:10])
    crop.train()
    crop.step_key.fill_(7)
    first = crop(pictures())
    crop.step_key.fill_(8)
    crop(pictures())
    crop.step_key.fill_(7)
    assert torch.equal(crop(pictures()), first)
