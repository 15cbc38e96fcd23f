"""API dialects: how callers write requests and read replies. `base.py` says what one must do."""

from palestra.harness_proxy.dialects.base import Dialect
from palestra.harness_proxy.dialects.chat import ChatDialect

DIALECTS: tuple[Dialect, ...] = (ChatDialect(),)
"""All that a proxy speaks. The first answers requests whose path names none."""
