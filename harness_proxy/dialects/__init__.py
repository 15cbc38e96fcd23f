"""API dialects: how callers write requests and read replies. `base.py` says what one must do."""

from palestra.harness_proxy.dialects.anthropic import AnthropicDialect
from palestra.harness_proxy.dialects.base import Dialect
from palestra.harness_proxy.dialects.chat import ChatDialect
from palestra.harness_proxy.dialects.gemini import GeminiDialect
from palestra.harness_proxy.dialects.responses import ResponsesDialect

DIALECTS: tuple[Dialect, ...] = (ChatDialect(), ResponsesDialect(), AnthropicDialect(), GeminiDialect())
"""All that a proxy speaks. The first answers requests whose path names none."""
