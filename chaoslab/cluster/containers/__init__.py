"""The `docker` backend: a node is an agent's container and a training container that shares it."""
