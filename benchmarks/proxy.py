"""What the recording proxy costs, beside litellm's proxy and a bare pass-through, in one run.

    python benchmarks/proxy.py              tables
    python benchmarks/proxy.py --json       one object
    python benchmarks/proxy.py --no-litellm leaves litellm out (its venv, .cache/litellm-venv, is made otherwise)

Conversations of four turns: a request of 1.1 kB on average with a tool, a reply of 64 tokens, whole or as a
stream; four sessions play each conversation, as the attempts of a group do. A client in C with 1 or 16 connections
asks, in turn,

    direct     the model server itself: the chat request that a harness would send without a proxy
    bare       ASGI, aiohttp and uvicorn, passing bodies on: what a proxy that does nothing costs in Python
    lean       the same through the listener and the HTTP client of the recording proxy
    palestra   the recording proxy: renders and bridges token ids, asks the same server for tokens with
               log-probabilities, records; each call is on disk before it is answered, each session is committed
               to a store after its fourth call. All of it is counted, in the proxy's process
    litellm    litellm's proxy, one worker, no database, no logging

in rounds, so that other work on the machine meets all alike. Added latency is the p50 at one connection less
that of direct in the same round. The model server answers at once from memory, so nothing hides the cost. CPU is
that of the proxy's process alone. A stream of the model server, which others pass on, has nineteen events;
one of the recording proxy has four, whatever the engine: a reply is on disk before its first byte, so it is sampled
whole, and cutting it into pieces that leave together would only cost both sides. Requests per second depend on what
else runs on the machine, so 1e6 / CPU is shown beside: what one core gives.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from measure import Bench
from palestra.harness_proxy.rendering import Rendering
from palestra.harness_proxy.testing import make_tiny_tokenizer
from proxy_load import HERE, Recorded, Run, Target, compiled, conversations, corpus, litellm, run, start
from proxy_servers import Canned

GOALS = {
    "added_p50_ms": 0.4,
    "rps_c16": 3000,
    "rps_stream_c16": 1500,
    "cpu_us_per_request": 300,
    "litellm_rps_ratio": 35,
    "litellm_latency_ratio": 25,
    "bare_cpu_ratio": 3,
}
SHARES = {1: 6, 16: 1}
"""Connections, and which part of a round's conversations they get; litellm gets a twenty-fifth of that."""

Rounds = Mapping[tuple[str, int, bool], list[Run]]
"""By target, connections, and whether it was streamed."""


def main() -> None:
    """Measure and print."""
    bench = Bench("What the recording proxy costs", example="python benchmarks/proxy.py --quick --json")
    bench.parser.add_argument("--no-litellm", action="store_true", help="leave litellm out")
    bench.parser.add_argument("--talks", type=int, help="conversations per round (default 750, --quick 150)")
    args = bench.parse()
    talks = args.talks or (150 if args.quick else 750)
    rounds: Rounds = defaultdict(list)
    with ExitStack() as stack:
        targets = start_all(stack, with_litellm=not args.no_litellm)
        client = compiled()
        for number in range(args.repeats + 1):  # the first one warms up
            for connections, stream in [(c, s) for c in SHARES for s in (False, True)]:
                for name, target in targets.items():
                    ran = run(client, target, connections, talks // SHARES[connections], stream)
                    if number:
                        rounds[name, connections, stream].append(ran)
    bench.show({}, **facts(rounds), rounds=args.repeats, goals=GOALS)


def start_all(stack: ExitStack, *, with_litellm: bool) -> dict[str, Target]:
    """All servers, direct first."""
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="palestra-")))
    model = make_tiny_tokenizer(directory / "model", vocab_size=1200, sentences=corpus())
    serve = [sys.executable, HERE / "proxy_servers.py"]
    upstream = start(stack, [*serve, "upstream", model])
    url = f"http://127.0.0.1:{upstream.port}"
    texts = conversations(Canned(Rendering.load(model)).text, 200)
    targets = {
        "direct": Target(upstream, texts),
        "bare": Target(start(stack, [*serve, "bare", url]), texts),
        "lean": Target(start(stack, [*serve, "lean", url]), texts),
        "palestra": Recorded(start(stack, [*serve, "palestra", url, model, directory]), texts),
    }
    if with_litellm:
        targets["litellm"] = Target(litellm(stack, upstream, directory), texts, slow=25)
    return targets


def facts(rounds: Rounds) -> dict[str, Any]:
    """The figures that have goals, and what they are made of."""

    def of(name: str, connections: int, stream: bool, what: Callable[[Run], float]) -> float:
        return median(map(what, rounds[name, connections, stream]))

    def added_ms(name: str, stream: bool = False) -> float:
        pairs = zip(rounds[name, 1, stream], rounds["direct", 1, stream], strict=True)
        return median((mine.p50_us - theirs.p50_us) / 1000 for mine, theirs in pairs)

    def ratio(a: str, b: str, what: Callable[[Run], float]) -> float:
        pairs = zip(rounds[a, 16, False], rounds[b, 16, False], strict=True)
        return median(what(mine) / what(theirs) for mine, theirs in pairs)

    has_litellm = ("litellm", 1, False) in rounds
    cpu_us = of("palestra", 16, False, lambda r: r.cpu_us)
    return {
        "added_p50_ms": added_ms("palestra"),
        "rps_c16": of("palestra", 16, False, lambda r: r.rps),
        "rps_stream_c16": of("palestra", 16, True, lambda r: r.rps),
        "cpu_us_per_request": cpu_us,
        "litellm_rps_ratio": ratio("palestra", "litellm", lambda r: r.rps) if has_litellm else None,
        "litellm_latency_ratio": added_ms("litellm") / added_ms("palestra") if has_litellm else None,
        "bare_cpu_ratio": ratio("palestra", "bare", lambda r: r.cpu_us),
        "lean_cpu_ratio": ratio("palestra", "lean", lambda r: r.cpu_us),
        "added_p50_stream_ms": added_ms("palestra", stream=True),
        "cpu_us_per_streamed_request": of("palestra", 16, True, lambda r: r.cpu_us),
        "rps_of_one_core": 1e6 / cpu_us,
        "table": {_name(*key): _row(runs) for key, runs in rounds.items()},
    }


def _name(target: str, connections: int, stream: bool) -> str:
    return f"{target} c={connections} {'stream' if stream else 'whole'}"


def _row(runs: list[Run]) -> dict[str, float]:
    fields = ("p50_us", "p99_us", "rps", "cpu_us")
    return {name: round(median(getattr(r, name) for r in runs), 1) for name in fields}


if __name__ == "__main__":
    main()
