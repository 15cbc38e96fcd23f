"""SQL tasks: databases, guarded connections, generated questions and benchmark loaders. Start with
`database.py`.
"""
