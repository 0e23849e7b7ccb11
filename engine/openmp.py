"""How torch's threads wait for each other. Counts only if it runs before torch is first imported.

GNU OpenMP's threads spin while they wait, unless told otherwise. Beside one other busy program a token then took 1650
ms instead of 100 on two cores, since a spinning thread keeps the working one off its core. Going to sleep at once
costs as well: a token has some 150 parallel steps with Python between them, and waking a thread takes longer than
most steps (int8: 77 against 57 ms a token). So threads spin for about the time between two steps.
"""

import os

SPINS = "20000"

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
