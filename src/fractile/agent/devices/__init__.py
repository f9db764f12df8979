"""The cards of this node: what there is, whether it is healthy, and the objects at the API server that say so."""
