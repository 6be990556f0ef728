"""Experiments: many runs, described by a TOML file, and their records."""
