"""Use of cards that no placement covers: found, told, and ended as ``--outside-ledger`` says."""
