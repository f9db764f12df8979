"""The policies, one file each, in one table (``table``)."""
