"""The k8v4 codec: bounded error, an orthonormal rotation, outliers, constant groups."""

import pytest
import torch

from kernels.kv_codec import hadamard, pack_keys, pack_values, unpack_keys, unpack_values


@pytest.mark.parametrize("d", [64, 96, 128])
def test_hadamard_is_its_own_inverse_and_keeps_lengths(d, random):
    x = torch.randn(3, 5, d, generator=random)
    turned = hadamard(x)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(hadamard(turned), x, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(turned, x, atol=0.1)


def test_keys_are_within_half_a_step_of_their_channel(random):
    keys = torch.randn(2, 3, 64, 96, generator=random) * torch.logspace(-2, 2, 96)  # outlier channels, as in Qwen
    packed = pack_keys(keys)
    assert packed.codes.shape == keys.shape
    assert packed.codes.dtype == torch.uint8
    step = (keys.amax(-2, keepdim=True) - keys.amin(-2, keepdim=True)) / 255
    assert ((unpack_keys(packed) - keys).abs() <= 0.6 * step).all()


def test_values_are_within_half_a_step_of_their_token(random):
    values = torch.randn(2, 130, 96, generator=random) * torch.logspace(-2, 2, 130)[:, None]
    packed = pack_values(values)
    assert packed.codes.shape == (2, 130, 48)
    step = (values.amax(-1, keepdim=True) - values.amin(-1, keepdim=True)) / 15
    assert ((unpack_values(packed) - values).abs() <= 0.55 * step).all()


def test_rotation_saves_values_with_one_large_entry(random):
    values = torch.randn(4, 200, 64, generator=random)
    values[..., 5] += 40
    plain = unpack_values(pack_values(values)) - values
    rotated = hadamard(unpack_values(pack_values(hadamard(values)))) - values
    assert rotated.norm() < 0.7 * plain.norm()


def test_constant_groups_come_back(random):
    constant = torch.full((1, 1, 64, 8), 3.5)
    assert torch.equal(unpack_keys(pack_keys(constant)), constant)
    assert torch.equal(unpack_values(pack_values(constant[0])), constant[0])
