"""What the chaos does: faults, pods, and the processes and connections that it breaks."""
