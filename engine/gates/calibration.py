"""A model opened for calibration: dense weights, tokenizer and fingerprint, without KV memory or packed weights."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from engine.config import EngineConfig
from engine.gates.format import HeadGates, as_rows
from engine.gates.keys import key_damage, wide_layers
from engine.gates.mass import attention_outside, gates_from_mass
from engine.gates.sample import Progress, Sample
from engine.gates.training import train_gates
from engine.linear import load_decoder
from engine.load import resolve_context
from engine.model import Decoder
from engine.patterns.policy import RECENT, SINK
from engine.profiles import profile_of, put_in_force
from engine.tokenizer import Tokenizer
from engine.weights import open_model


@dataclass(frozen=True, slots=True)
class Calibration:
    """`context`: tokens that the model takes, context and tail together."""

    decoder: Decoder
    tokenizer: Tokenizer
    fingerprint: str
    context: int

    def train(
        self,
        samples: Sequence[Sample],
        steps: int,
        seed: int = 0,
        progress: Progress = lambda what, share: None,
        cancel: threading.Event | None = None,
    ) -> HeadGates:
        """Gates by training, and the layers whose keys need 8 bits. Raises as `train_gates`."""
        wide = self.wide_key_layers(samples, progress, cancel)
        gates = train_gates(self.decoder, samples, steps=steps, seed=seed, progress=progress, cancel=cancel)
        return HeadGates(self.fingerprint, "trained", seed, steps, SINK, RECENT, as_rows(gates), wide)

    def quick(
        self,
        samples: Sequence[Sample],
        seed: int = 0,
        progress: Progress = lambda what, share: None,
        cancel: threading.Event | None = None,
    ) -> HeadGates:
        """Gates by attention mass alone, and the layers whose keys need 8 bits. Raises as `attention_outside`."""
        wide = self.wide_key_layers(samples, progress, cancel)
        outside = attention_outside(self.decoder, samples, progress=progress, cancel=cancel)
        return HeadGates(self.fingerprint, "quick", seed, 0, SINK, RECENT, as_rows(gates_from_mass(outside)), wide)

    def wide_key_layers(
        self,
        samples: Sequence[Sample],
        progress: Progress = lambda what, share: None,
        cancel: threading.Event | None = None,
    ) -> tuple[int, ...]:
        """The layers whose keys need 8 bits, for EngineConfig. Raises as `key_damage`."""
        return wide_layers(key_damage(self.decoder, samples, progress=progress, cancel=cancel))


def open_for_calibration(config: EngineConfig, progress: Progress = lambda what, share: None) -> Calibration:
    """Read a model's dense weights, with the RoPE that the engine would use. Raises what `Engine.load` does."""
    profile = profile_of(config)
    put_in_force(profile)
    with open_model(config.model) as source:
        context, rope = resolve_context(config, source.config, profile.device)
        decoder = load_decoder(source, rope, profile.dtype, profile.device, lambda share: progress("weights", share))
        return Calibration(decoder, Tokenizer(source.tokenizer_source), source.fingerprint, context)
