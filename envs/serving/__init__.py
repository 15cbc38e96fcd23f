"""Any world as a service: over MCP for agents, over HTTP and WebSocket for OpenEnv clients. Start with `episode.py`."""
