"""The contents of the commands' reports, one module each: read from the API server, independent of the output
format."""
