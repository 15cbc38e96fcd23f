"""Searching a corpus: the environment (`env.py`), retrievers (`retriever.py`), a /retrieve service (`service.py`)."""
