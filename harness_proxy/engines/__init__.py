"""What samples tokens. Every adapter implements `base.Engine`."""
