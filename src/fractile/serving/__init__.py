"""HTTPS servers of the control plane: certificates, connections, bounds of requests, and who the caller is."""
