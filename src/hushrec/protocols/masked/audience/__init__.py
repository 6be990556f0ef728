"""Model `audience` in the masked protocol: ranks items for one-class data, and learns from noisy sums only."""
