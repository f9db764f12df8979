"""The only access to the cards: NVIDIA's NVML, or a file of simulated cards. Used by ``agent``."""
