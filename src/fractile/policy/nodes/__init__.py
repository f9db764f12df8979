"""Which node, and which of its GPUs: scores as functions of arrays of nodes.

A request and the nodes are in thousandths: of a CPU, of a GPU. All arithmetic is in integers, so that equal inputs give
equal choices on every machine; the best score wins, and among equals the node that stands first. ``policy.cards``
chooses cards of one node as kubelet needs them; this package compares nodes of whole clusters.
"""
