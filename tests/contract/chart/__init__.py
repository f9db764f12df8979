"""What the chart does to a real API server."""
