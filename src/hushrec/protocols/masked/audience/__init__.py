"""Model `audience` in the masked protocol: learns to rank items from one-class data, from noisy sums only."""
