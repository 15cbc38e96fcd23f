"""The recorder: an LLM-API proxy between any agent harness and the inference engine. Start with
`server.py`."""
