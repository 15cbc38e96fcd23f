"""What search is about: corpora (`corpus.py`), question files (`questions.py`), a generated pack (`hops/`)."""
