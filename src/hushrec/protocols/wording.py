"""Phrases about what is not guaranteed, shared by several protocols."""

TAKING_PART = "that a device takes part, and when"
