"""The sampler's rules and the stop filter, at every way to cut a text."""

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.config import Sampling
from engine.sampling import Sampler, StopFilter


def draws(sampling: Sampling, logits: torch.Tensor, count: int = 20) -> list[int]:
    sampler = Sampler(sampling)
    return [sampler.next(logits) for _ in range(count)]


LOGITS = torch.tensor([1.0, 1.1, 0.9, 1.05, -9.0])


def test_greedy_takes_the_first_of_the_largest():
    assert draws(Sampling(), torch.tensor([0.0, 3.0, 3.0]), 3) == [1, 1, 1]


def test_a_seed_repeats_and_no_seed_does_not():
    seeded = Sampling(temperature=1.0, seed=7)
    assert draws(seeded, LOGITS) == draws(seeded, LOGITS)
    assert draws(seeded, LOGITS) != draws(Sampling(temperature=1.0, seed=8), LOGITS)
    fresh = Sampling(temperature=1.0)
    assert draws(fresh, LOGITS, 60) != draws(fresh, LOGITS, 60)


def test_repetition_penalty_moves_greedy_on():
    assert draws(Sampling(repetition_penalty=1.5), LOGITS, 4) == [1, 3, 0, 2]


def test_top_k_one_is_greedy():
    assert set(draws(Sampling(temperature=5.0, top_k=1, seed=1), LOGITS)) == {1}


@given(
    text=st.text(alphabet="abS", max_size=40),
    stop=st.lists(st.text(alphabet="abS", min_size=1, max_size=5), max_size=3),
    cuts=st.lists(st.integers(0, 40), max_size=10),
)
def test_stop_filter_shows_everything_before_the_first_stop_text(text, stop, cuts):
    filter, shown, edges = StopFilter(tuple(stop)), "", sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    for start, end in itertools.pairwise(edges):
        more, stopped = filter.push(text[start:end])
        shown += more
        assert not any(s in shown for s in stop)
        if stopped:
            assert any(text.startswith(s, len(shown)) for s in stop)
            break
    else:
        shown += filter.flush()
        assert shown == text
        assert not any(s in text for s in stop)


def test_stop_filter_holds_back_no_more_than_it_must():
    filter = StopFilter(("</end>",))
    assert filter.push("hello <") == ("hello ", False)
    assert filter.push("b") == ("<b", False)
    assert filter.push("</e") == ("", False)
    assert filter.push("nd>x") == ("", True)
