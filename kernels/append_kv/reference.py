"""Append to a paged cache in torch: one slice copy for each run of consecutive KV pages."""

from collections.abc import Sequence

import torch


def append_kv(
    key_slots: torch.Tensor,
    value_slots: torch.Tensor,
    runs: Sequence[tuple[int, int]],
    keys: torch.Tensor,
    values: torch.Tensor,
) -> None:
    """Write keys and values [t, kv_heads, d] into slots [kv_heads, capacity, d], in place.

    `runs`: (first slot, tokens) in order; the tokens add up to t. Values are rounded to the type of the slots.
    """
    done = 0
    for slot, tokens in runs:
        key_slots[:, slot : slot + tokens] = keys[done : done + tokens].transpose(0, 1)
        value_slots[:, slot : slot + tokens] = values[done : done + tokens].transpose(0, 1)
        done += tokens
