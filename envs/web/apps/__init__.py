"""Small sites to act on: a shop, a forum and a desk, each a Starlette application on a SQLite database."""
