"""Local clusters, simulated nodes and image building; production programs import nothing from here."""
