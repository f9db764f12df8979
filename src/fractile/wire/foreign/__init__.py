"""Formats of other programs: gpu-manager, kubeadm, kubelet's checkpoint, container runtimes, kernel logs."""
