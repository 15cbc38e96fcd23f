"""Who joins the batch next: which waiting requests are computed together, and what each reuses of the store.

Requests are taken in order of arrival. Two that share a long prefix that the store does not have yet are not
computed side by side: the second waits for the next wave, a few milliseconds later, and finds the first one's
prompt in the store. So a group of rollouts of one task costs one prompt, and a cold start one system prompt.
"""

from __future__ import annotations

from collections import deque

from palestra.harness_proxy.engines.embedded.batch import Joining, Request
from palestra.harness_proxy.engines.embedded.cache import PrefixStore, shared_tokens

WAVE_TOKENS = 2048
"""Most token columns of one prefill, padding included, unless a single prompt is longer."""

WORTH_SHARING_TOKENS = 32


def next_wave(waiting: deque[Request], store: PrefixStore, free_rows: int) -> list[Joining]:
    """Take the requests that join now out of `waiting`; the others stay there in their order."""
    wave: list[Joining] = []
    deferred: list[Request] = []
    longest_tail = 0
    while waiting and len(wave) < free_rows:
        new = _match(waiting[0], store)
        longest_tail = max(longest_tail, new.tail_tokens)
        if wave and longest_tail * (len(wave) + 1) > WAVE_TOKENS:
            break
        waiting.popleft()
        if new.keep_prompt and _another_computes_it(new, wave):
            deferred.append(new.request)
        else:
            wave.append(new)
    waiting.extendleft(reversed(deferred))
    return wave


def _match(request: Request, store: PrefixStore) -> Joining:
    """Find the stored prefix; at least the last prompt token is always computed, for its logits."""
    found = store.find(request.prompt, request.session) if store.enabled else None
    if found is None:
        return Joining(request, None, 0, keep_prompt=store.enabled)
    prefix, shared = found
    reused = min(shared, len(request.prompt) - 1)
    continues = prefix.session != "" and prefix.session == request.session
    is_news = len(request.prompt) - reused > WORTH_SHARING_TOKENS
    return Joining(request, prefix, reused, keep_prompt=is_news and not continues)


def _another_computes_it(new: Joining, wave: list[Joining]) -> bool:
    worth = new.reused + WORTH_SHARING_TOKENS
    prompt = new.request.prompt
    return any(other.keep_prompt and shared_tokens(prompt, other.request.prompt) > worth for other in wave)
