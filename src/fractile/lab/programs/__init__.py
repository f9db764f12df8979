"""One wiring file for each program that only local clusters run."""
