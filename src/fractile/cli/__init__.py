"""The commands for users. Reports such as ``inspect`` need only the API server, not the control plane."""
