"""What fits, what would fit, and which moves help (``fractile plan``)."""
