"""Sentences about guarantees that several protocols share."""

TAKING_PART = "that a device takes part, and when"
