"""From logits to the next token, and from tokens to text that may be shown."""

import secrets

import torch

from engine.config import Sampling
from kernels.sample import filter_logits, penalize, sample


class Sampler:
    """Draws tokens by the rules of one `Sampling`; the same seed and logits give the same tokens.

    The repetition penalty looks at the answer alone: penalizing the prompt would punish quoting a document.
    """

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self._answer: list[int] = []
        self._generator = torch.Generator()
        self._generator.manual_seed(secrets.randbits(63) if sampling.seed is None else sampling.seed)

    @property
    def greedy(self) -> bool:
        """Whether it always takes the likeliest token."""
        return self.sampling.temperature == 0 and self.sampling.repetition_penalty == 1

    def next(self, logits: torch.Tensor) -> int:
        """logits float32 [vocab] -> token id."""
        rules = self.sampling
        if self.greedy:
            return int(logits.argmax())
        logits = logits.cpu()
        if rules.repetition_penalty != 1 and self._answer:
            seen = torch.tensor(sorted(set(self._answer)))
            logits = penalize(logits, seen, rules.repetition_penalty)
        if rules.temperature == 0:
            token = int(logits.argmax())
        else:
            token = sample(
                filter_logits(logits, rules.temperature, rules.top_k, rules.top_p, rules.min_p), self._generator
            )
        self._answer.append(token)
        return token


class StopFilter:
    """Passes text on until a stop text appears, and holds back what may still become one."""

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop = stop
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """-> text that may be shown, and whether a stop text was met (the text then ends before it)."""
        self._held += text
        found = [at for at in (self._held.find(stop) for stop in self._stop) if at >= 0]
        if found:
            shown, self._held = self._held[: min(found)], ""
            return shown, True
        keep = max((self._overlap(stop) for stop in self._stop), default=0)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown, False

    @property
    def holds(self) -> bool:
        """Whether text is held back."""
        return bool(self._held)

    def flush(self) -> str:
        """What was held back, once nothing can follow."""
        shown, self._held = self._held, ""
        return shown

    def _overlap(self, stop: str) -> int:
        """The longest end of the held text that begins `stop`."""
        longest = min(len(self._held), len(stop) - 1)
        return next((n for n in range(longest, 0, -1) if self._held.endswith(stop[:n])), 0)
