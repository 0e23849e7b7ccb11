"""What calibration reads: invented prose with passkeys of words planted in it, then questions and answers about them.

As in DuoAttention's training data, with text of our own. Passkeys stand where a streaming head can no longer see them
from the questions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

from app.errors import DoesNotFit
from app.evaluate.prose import Prose
from app.evaluate.words import ADJECTIVES, OBJECTS

if TYPE_CHECKING:
    from engine.gates import Sample

PASSKEYS = 6
WORDS_OF_PASSKEY = 8
FIRST = 96  # tokens at the start without a passkey, more than the sink
NEAR = 384  # tokens before the questions without one, more than a streaming head reads
LENGTHS = (1024, 1536, 1024, 2048)  # tokens of the contexts, in turn
SHORTEST = 768

Encode = Callable[[str], Sequence[int]]


def make_samples(
    encode: Encode, count: int, seed: int, context: int, *, lengths: Sequence[int] = LENGTHS
) -> list[Sample]:
    """`count` samples that `seed` decides. `context`: tokens that the model takes; `lengths` are cut down to it.

    DoesNotFit for a model that takes too few.
    """
    rng = Random(seed)
    return [
        _sample(encode, Random(rng.getrandbits(64)), lengths[index % len(lengths)], context) for index in range(count)
    ]


def _sample(encode: Encode, rng: Random, length: int, most: int) -> Sample:
    from engine.gates import Sample

    names = rng.sample(OBJECTS, PASSKEYS)
    keys = {name: " ".join(rng.sample(ADJECTIVES, WORDS_OF_PASSKEY)) for name in names}
    tail: list[int] = []
    answers: list[int] = []
    for name in rng.sample(names, PASSKEYS):
        tail += encode(f"\n\nQuestion: What is the passkey of the {name}?\nAnswer: The passkey of the {name} is:")
        answer = encode(f" {keys[name]}")
        answers += range(len(tail) - 1, len(tail) + len(answer) - 1)
        tail += [*answer, *encode(".")]
    if most < SHORTEST + len(tail):
        raise DoesNotFit(
            f"Calibration needs texts of {SHORTEST + len(tail)} tokens, and the model takes {most}.",
            "So short a context gains nothing from streaming heads.",
            needed_tokens=SHORTEST + len(tail),
            available_tokens=most,
        )
    planted = [encode(f" The passkey of the {name} is: {key}.") for name, key in keys.items()]
    context = _plant(encode, rng, planted, min(length, most - len(tail)))
    return Sample(tuple(context), tuple(tail), tuple(answers))


def _plant(encode: Encode, rng: Random, planted: Sequence[Sequence[int]], length: int) -> list[int]:
    """About `length` tokens of prose, with the planted sentences at random depths between whole sentences."""
    room = length - sum(map(len, planted))
    waiting = sorted(((rng.uniform(FIRST, room - NEAR), ids) for ids in planted), key=lambda item: item[0])
    context: list[int] = []
    written = 0  # tokens of prose
    prose = Prose(rng)
    while True:
        while waiting and waiting[0][0] <= written:
            context += waiting.pop(0)[1]
        ids = encode(f" {next(prose)}")
        if written + len(ids) > room and not waiting:
            return context
        context += ids
        written += len(ids)
