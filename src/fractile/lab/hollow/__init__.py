"""Nodes without machines: a kubelet that runs no containers, with the devices of a real node."""
