"""What the control plane shows about itself: pages of its state, figures, and the steps of a trace."""
