"""The only door to the API server: requests, reflected lists, events and leadership over raw HTTP and msgspec.

Stands between ``wire`` (the structs it decodes into) and the programs. Nothing is imported here: the node agent has
a budget of 60 MB, so each program takes the modules it uses. The reasons for an own client are measured in
docs/develop/dependencies.md: the generic ones cost forty times the memory and lose deletions after a 410.
"""
