"""Decode steps recorded as CUDA graphs. Needs Triton, so it is imported only where there is a card."""
