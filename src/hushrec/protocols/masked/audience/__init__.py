"""Model `audience` in the masked protocol: rankings from implicit feedback, learned from noisy sums only."""
