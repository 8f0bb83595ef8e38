"""Scenarios: one story a file. Run them with `pytest scenarios/`."""
