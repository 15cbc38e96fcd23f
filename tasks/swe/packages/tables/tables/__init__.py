"""Plain text tables."""

from tables.layout import Column, render
from tables.text import align, cut, wrap

__all__ = ["Column", "align", "cut", "render", "wrap"]
