"""The generated pack `search-hops`; see `pack.py`."""
