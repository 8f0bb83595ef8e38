"""Injection: makes a fault real in a node, proves that it bit, and undoes it."""
