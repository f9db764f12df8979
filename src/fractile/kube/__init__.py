"""The only access to the API server: requests, reflected lists, events and leadership over raw HTTP and msgspec.

It stands between ``wire`` (the structs into which it decodes) and the programs. This file imports nothing: the node
agent has a budget of 60 MB, so each program imports the modules that it uses. docs/develop/dependencies.md has the
measurements behind an own client: the generic ones take forty times the memory and lose deletions after a 410.
"""
