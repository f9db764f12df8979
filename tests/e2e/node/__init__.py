"""What a node does for its pods, on the real cluster."""
