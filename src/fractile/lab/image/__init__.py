"""Builds the container image from Debian packages and the wheel, with its bill of materials."""
