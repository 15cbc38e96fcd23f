"""Learning: credit, losses, batches, the trainer. Start with `trainer.py`."""
