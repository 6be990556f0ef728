"""Engine `gpu`: many runs at once, in PyTorch and Triton."""
