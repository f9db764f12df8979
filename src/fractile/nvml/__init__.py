"""The only door to the cards: NVIDIA's NVML, or a file of simulated cards. Read by ``agent``."""
