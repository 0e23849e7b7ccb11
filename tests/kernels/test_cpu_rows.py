"""Products of queries with rows of a KV page inside compiled code, against float64."""

import numpy as np
import pytest

from kernels import cpu_jit

pytestmark = pytest.mark.skipif(not cpu_jit.available(), reason=cpu_jit.unavailable_reason() or "compiled")


@pytest.fixture(scope="module")
def compiled():
    import numba

    from kernels.cpu_rows import add_rows, row_products

    @numba.njit
    def products(rows, first, count, queries, scores):
        row_products(rows, first, count, queries, scores)

    @numba.njit
    def add(rows, first, count, weights, out):
        add_rows(rows, first, count, weights, out)

    return products, add


def bfloat16(x):
    """(the upper halves of float32 as int16, their values)."""
    bits = x.view(np.uint32) & np.uint32(0xFFFF0000)
    return (bits >> np.uint32(16)).astype(np.uint16).view(np.int16), bits.view(np.float32)


@pytest.mark.parametrize("packed", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("d", [8, 20, 64, 80, 256])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("count", [1, 3, 4, 9, 64])
def test_both_directions(compiled, packed, d, group, count):
    products, add = compiled
    random = np.random.default_rng(d * group + count)
    rows = random.standard_normal((70, d), np.float32)
    stored, rows = bfloat16(rows) if packed else (rows, rows)
    queries, weights = random.standard_normal((group, d), np.float32), random.standard_normal((group, 66), np.float32)
    used = rows[5 : 5 + count].astype(np.float64)
    scores = np.full((group, 66), np.nan, np.float32)
    products(stored, 5, count, queries, scores)
    np.testing.assert_allclose(scores[:, :count], queries.astype(np.float64) @ used.T, rtol=0, atol=2e-6 * d)
    assert np.isnan(scores[:, count:]).all()
    out = random.standard_normal((group, d), np.float32)
    expected = out + weights[:, :count].astype(np.float64) @ used
    add(stored, 5, count, weights, out)
    np.testing.assert_allclose(out, expected, rtol=0, atol=3e-6 * max(count, 4))
