"""Gates: which KV heads may stream. One number a head from 0 to 1; a head whose gate is low can do without the middle.

`training` learns them as DuoAttention does, `mass` judges them by attention alone, `format` keeps them in files and
reads those of DuoAttention. `keys` finds the layers whose keys need 8 bits, which is kept with them. From token ids to
numbers: what the samples say is the caller's business.
"""

from engine.gates.calibration import Calibration, open_for_calibration
from engine.gates.format import (
    GateFileError,
    GatesMissingError,
    HeadGates,
    check_gates,
    read_duo_attention,
    read_gates,
    write_gates,
)
from engine.gates.keys import key_damage, wide_layers
from engine.gates.mass import attention_outside, gates_from_mass
from engine.gates.sample import Cancelled, Sample
from engine.gates.training import train_gates

__all__ = [
    "Calibration",
    "Cancelled",
    "GateFileError",
    "GatesMissingError",
    "HeadGates",
    "Sample",
    "attention_outside",
    "check_gates",
    "gates_from_mass",
    "key_damage",
    "open_for_calibration",
    "read_duo_attention",
    "read_gates",
    "train_gates",
    "wide_layers",
    "write_gates",
]
