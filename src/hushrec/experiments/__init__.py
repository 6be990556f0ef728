"""Experiments: a TOML file in, one record per run out. Modules are imported by name, so that `grid` stays light."""
