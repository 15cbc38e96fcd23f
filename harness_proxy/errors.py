"""Errors of the harness_proxy package.

    ProxyError
      + RequestError            answered over HTTP, in the words of the caller's API
          - BadRequestError         400: the body is not what this API defines, or asks for what cannot be done
          - ContextLengthError      400, code context_length_exceeded
          - UnknownKeyError         401: no open session has this key
          - NotFoundError           404: no such path
          - MethodError             405: the path exists, the method does not
          - LateBodyError           408: the body did not arrive in time
          - BodyTooLargeError       413
          - UpgradeError            426: WebSockets are not served
          - PausedError             429 with Retry-After: weights are being updated
          - QueueFullError          429 with Retry-After: too many calls wait for the engine
          - EngineFailedError       500: what the engine sent cannot be used; the session is marked failed
          - InternalError           500: a failure of ours; the session is marked failed
          - RecordingError          503 with Retry-After: the call could not be kept on disk
          - EngineBusyError         503 with Retry-After: the same request may work later
      + CaptureError            train mode asked of an engine without token ids (also a ValueError)
      + RenderingError          messages or a model directory that cannot be rendered (also a ValueError)
      + ModelNotFoundError      a model that is neither a directory nor on the hub (also a FileNotFoundError)
      + ProxyStateError         a call out of order: a session closed twice, a proxy used before start()

An engine's own errors are in `engines/base.py`; `recorder.py` translates them.
"""

from typing import ClassVar


class ProxyError(Exception):
    """Base of what the proxy raises on purpose."""


class RequestError(ProxyError):
    """Base of what is answered over HTTP. `status` and `kind` choose what a caller's SDK does with it."""

    status: ClassVar[int] = 400
    kind: ClassVar[str] = "invalid_request_error"
    code: ClassVar[str | None] = None
    retry_after_s: float | None = None


class BadRequestError(RequestError):
    """Raised when a request cannot be served as it was asked."""


class ContextLengthError(RequestError):
    """Raised when prompt and reply do not fit the model's context window. Sizes are in tokens."""

    code = "context_length_exceeded"

    def __init__(self, message: str, prompt_tokens: int, limit: int) -> None:
        super().__init__(message)
        self.prompt_tokens, self.limit = prompt_tokens, limit


class UnknownKeyError(RequestError):
    """Raised when no open session has the key."""

    status, kind, code = 401, "authentication_error", "invalid_api_key"


class NotFoundError(RequestError):
    """Raised when nothing is served at a path."""

    status, kind, code = 404, "not_found_error", "not_found"


class MethodError(RequestError):
    """Raised when a path does not take this method."""

    status, code = 405, "method_not_allowed"


class LateBodyError(RequestError):
    """Raised when a body does not arrive in time."""

    status, code = 408, "request_timeout"


class BodyTooLargeError(RequestError):
    """Raised when a body is larger than the proxy takes."""

    status, code = 413, "request_too_large"


class UpgradeError(RequestError):
    """Raised when a caller wants a WebSocket; callers fall back to POST."""

    status, code = 426, "upgrade_not_supported"


class PausedError(RequestError):
    """Raised while the proxy takes no new calls."""

    status, kind, code = 429, "rate_limit_error", "paused"

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueFullError(RequestError):
    """Raised when too many calls wait for the engine already."""

    status, kind, code = 429, "rate_limit_error", "queue_full"

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineFailedError(RequestError):
    """Raised when the engine broke its contract or failed for good."""

    status, kind, code = 500, "api_error", "engine_failed"


class InternalError(RequestError):
    """Raised in place of an unexpected exception, whose text stays on our side."""

    status, kind, code = 500, "api_error", "internal_error"


class RecordingError(RequestError):
    """Raised when a reply must not be given because the call could not be kept."""

    status, kind, code = 503, "overloaded_error", "recording_failed"

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineBusyError(RequestError):
    """Raised when the engine cannot serve this request now."""

    status, kind, code = 503, "overloaded_error", "engine_unavailable"

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class CaptureError(ProxyError, ValueError):
    """Raised when a session needs more of the engine than it was seen to give."""


class RenderingError(ProxyError, ValueError):
    """Raised when messages cannot become tokens: an unknown model family, a missing file, an impossible
    history."""


class ProxyStateError(ProxyError, RuntimeError):
    """Raised when the proxy is used out of order."""


class ModelNotFoundError(ProxyError, FileNotFoundError):
    """Raised when a model is no directory and cannot be fetched."""

    def __init__(self, name: str, cause: Exception | None = None) -> None:
        hub = f", and the Hugging Face hub did not give it ({_first_line(cause)})" if cause else ""
        super().__init__(f"{name} is no directory{hub}")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].strip() or type(error).__name__
