"""Looking at what happened: trajectories in a terminal. Start with `terminal.py`."""
