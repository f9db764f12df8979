"""The directory of each container: its limits file and region, written at its start and removed after its end."""
