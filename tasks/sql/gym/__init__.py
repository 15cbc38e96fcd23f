"""`sql-gym`: generated databases of everyday worlds, and questions of many kinds about them. Start with
`pack.py`.
"""
