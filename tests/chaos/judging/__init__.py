"""What the chaos sees, and what may not be."""
