"""Decode attention in torch: gathers the listed pages of each KV head and attends to them in float32."""

import torch

from kernels.block_index import BlockIndex
from kernels.decode_attention.paged import PAGE, PagedKv
from kernels.kv_codec import PackedPages, unpack_page_keys, unpack_page_values


def decode_attention(
    q: torch.Tensor, kv: PagedKv, table: torch.Tensor, index: BlockIndex, length: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `kernels.decode_attention.decode_attention`."""
    heads, d = q.shape
    kv_heads = kv.keys.shape[0]
    q = q.float().view(kv_heads, heads // kv_heads, d)
    outs, masses = [], []
    offsets = index.offsets.tolist()
    for head in range(kv_heads):
        pages = index.pages[offsets[head] : offsets[head + 1]].long()
        keys, values = gather_pages(kv, head, table[pages])  # [pages, 64, d]
        position = pages[:, None] * PAGE + torch.arange(PAGE, device=q.device)
        beyond = position >= length  # an unfinished page: what lies behind the last token must not count, even if NaN
        keys = keys.masked_fill(beyond[..., None], 0.0).flatten(0, 1)
        values = values.masked_fill(beyond[..., None], 0.0).flatten(0, 1)
        scores = (q[head] @ keys.T * scale).masked_fill(beyond.flatten(), -torch.inf)  # [group, tokens]
        weights = torch.softmax(scores, dim=-1)
        outs.append(weights @ values)
        masses.append(weights.unflatten(1, (-1, PAGE)).sum((0, 2)))
    return torch.cat(outs), torch.cat(masses)


def gather_pages(kv: PagedKv, head: int, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The pages of one KV head at `places` (int32 [n]) -> keys, values float32 [n, 64, d]."""
    places = places.long()
    if kv.packed is None or kv.format is None:
        return _exact(kv.keys[head], places), _exact(kv.values[head], places)
    keys, values = (torch.empty(places.shape[0], PAGE, kv.keys.shape[-1], device=places.device) for _ in range(2))
    exact = (places >= 0).nonzero().flatten()
    keys[exact], values[exact] = _exact(kv.keys[head], places[exact]), _exact(kv.values[head], places[exact])
    first = 0
    for pool, fmt in ((kv.packed, kv.format), (kv.cold, kv.cold_format)):
        if pool is None or fmt is None:
            continue
        end = first + pool.key_codes.shape[1]
        here = ((~places >= first) & (~places < end)).nonzero().flatten()
        if here.shape[0]:
            chosen = PackedPages(*(part[head][~places[here] - first] for part in pool))
            keys[here], values[here] = unpack_page_keys(chosen, fmt), unpack_page_values(chosen, fmt)
        first = end
    return keys, values


def _exact(pool: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return pool.unflatten(0, (-1, PAGE))[places].float()
