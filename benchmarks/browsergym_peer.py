"""BrowserGym's MiniWoB, driven line by line from `web.py`, in an environment of its own: it pins an old Playwright.

MINIWOB_URL and PALESTRA_CHROMIUM say where the pages and the browser are. Reads {"page": name, "seed": n, "steps": k}
per line; writes the seconds of the reset and of each step.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def main() -> None:
    """Answer until the input ends."""
    import browsergym.miniwob  # type: ignore[import-not-found]
    import gymnasium

    assert browsergym.miniwob
    executable = os.environ["PALESTRA_CHROMIUM"]
    for line in sys.stdin:
        order = json.loads(line)
        env = gymnasium.make(
            f"browsergym/miniwob.{order['page']}", pw_chromium_kwargs={"executable_path": executable}
        )
        print(json.dumps(play(env, order)), flush=True)
        env.close()


def play(env: Any, order: dict[str, Any]) -> dict[str, Any]:
    """Seconds of one reset and of some clicks."""
    started = time.perf_counter()
    observation, _ = env.reset(seed=order["seed"])
    reset_s, steps_s = time.perf_counter() - started, []
    ids = [b for b, p in observation["extra_element_properties"].items() if p["clickable"]] or ["0"]
    for number in range(order["steps"]):
        started = time.perf_counter()
        *_, terminated, truncated, _ = env.step(f"click('{ids[number % len(ids)]}')")
        steps_s.append(time.perf_counter() - started)
        if terminated or truncated:
            break
    return {"reset_s": reset_s, "steps_s": steps_s}


if __name__ == "__main__":
    main()
