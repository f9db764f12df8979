"""Kubelet's knowledge: the identity of a container, its checkpoint of devices, its pod-resources API."""
