"""How torch's threads wait for each other. Counts only if it runs before torch is first imported.

GNU OpenMP's threads spin while they wait, unless told otherwise. Beside one other busy program a token then took 1650
ms instead of 100 on two cores, since a spinning thread keeps the working one off its core.
"""

import os

SPINS = "1000"

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
