"""How figures are measured and printed, and the cluster on which they are."""
