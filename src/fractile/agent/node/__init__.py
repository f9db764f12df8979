"""The state of the machine: processes, control groups, mounts, the container runtime, the pods of this node."""
