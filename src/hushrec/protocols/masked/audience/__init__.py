"""Model `audience` under the masked protocol: who would meet which item next, from sums alone."""
