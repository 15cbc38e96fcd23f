"""Traces that others wrote, read for comparison with what the proxy recorded."""
