"""Event handlers of the control plane: each keeps the ledger, or a record next to it, in step with the API."""
