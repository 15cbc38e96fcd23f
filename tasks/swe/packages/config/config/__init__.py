"""A small configuration format."""

from config.merge import flatten, merge
from config.parse import ConfigError, parse, parse_value
from config.refs import resolve

__all__ = ["ConfigError", "flatten", "merge", "parse", "parse_value", "resolve"]
