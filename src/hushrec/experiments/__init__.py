"""Experiments: many training runs that are described by one TOML file, and the records of their results."""
