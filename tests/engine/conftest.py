"""Engine tests import `engine` before torch, so that its thread settings hold for them too."""

import engine  # noqa: F401
