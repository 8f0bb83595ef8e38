"""Crash: every state that a crash can leave of a save, built and checked. Usable alone."""
