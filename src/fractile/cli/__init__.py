"""The commands of a person's shell. They read the API server only, so they work when the control plane is down."""
