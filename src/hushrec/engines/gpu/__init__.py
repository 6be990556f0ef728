"""The engine `gpu`: it simulates many runs of gradient protocols at once, in PyTorch and Triton."""
