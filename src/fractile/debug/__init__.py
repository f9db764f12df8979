"""What the control plane shows of itself: pages of its state, figures, and the steps of a trace."""
