"""Placement over all nodes: the control plane chooses the node of a waiting pod and nominates it."""
