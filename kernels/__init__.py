"""Pure functions on tensors, one folder per operation: a torch reference, which is the CPU path and the oracle."""
