"""What the commands show, one module for each: read from the API server, put together, independent of its form."""
