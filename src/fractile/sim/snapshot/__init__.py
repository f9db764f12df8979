"""A cluster as arrays: from recorded traces, from YAML files, or from the API server."""
