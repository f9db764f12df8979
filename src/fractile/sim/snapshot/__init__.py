"""A cluster as arrays: from recorded traces, from YAML files, or read from the API server."""
