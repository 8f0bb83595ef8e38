"""Nodes: isolated places with an address of their own. They know nothing of faults."""
