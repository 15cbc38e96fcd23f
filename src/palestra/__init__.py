"""Palestra: a gym in which language-model agents learn by acting."""

__version__ = "0.1.0"
