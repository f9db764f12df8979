"""Choose a node, and which of its GPUs: scores as functions of arrays of nodes.

Requests and nodes are counted in thousandths of a CPU and of a GPU. All arithmetic is in integers, so that equal inputs
give equal choices on every machine; the best score wins, and the first node among equals. ``policy.cards`` chooses
cards of one node as kubelet needs them; this package compares the nodes of a cluster.
"""
