"""Pure functions on tensors, one folder per operation: a torch reference (the CPU path and the oracle) beside its Triton kernel."""
