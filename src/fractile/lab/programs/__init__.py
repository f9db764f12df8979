"""The wiring files of the programs that only local clusters run."""
