"""Edits kube-scheduler's static pod on a control-plane node (``fractile install-scheduler``)."""
