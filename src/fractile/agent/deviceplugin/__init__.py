"""kubelet's device plugin API: registration, lists of devices, and the answers to its three calls."""
