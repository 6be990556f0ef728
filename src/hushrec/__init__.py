"""Recommendations learned from ratings that never leave the device."""
