"""The cards of this node: inventory, health, and the objects at the API server that publish both."""
