"""What the machine itself says: processes, control groups, mounts, the container runtime, the pods of this node."""
