"""What commands print with ``-o json``, and what the agents' pages say."""
