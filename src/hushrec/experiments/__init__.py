"""Experiments: many runs described by a TOML file, and their records. `grid` does not need the other modules."""
