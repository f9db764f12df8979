"""Local clusters, simulated nodes and image building: nothing that production programs import."""
