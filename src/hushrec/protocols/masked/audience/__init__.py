"""Model `audience` under the masked protocol: rankings from implicit feedback, learned from noisy sums only."""
