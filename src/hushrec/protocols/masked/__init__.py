"""The masked protocol: devices add up clipped, noised tables of integers; only sums are seen."""
