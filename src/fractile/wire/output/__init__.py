"""The output of commands with ``-o json``, and of the programs' HTTP pages."""
