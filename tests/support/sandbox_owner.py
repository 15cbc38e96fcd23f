"""A program that makes sandboxes and waits to be killed: python sandbox_owner.py KIND COUNT MARK"""

from __future__ import annotations

import sys
import time

from palestra.envs.sandbox.backends import open_backend
from sandboxes import base_image


def main(kind: str, count: int, mark: str) -> None:
    made = open_backend(kind)
    image = base_image()
    live = []
    for n in range(count):
        live.append(made.create(image))
        live[-1].exec(f"(setsid sleep {mark} > /dev/null 2>&1 &)" if n % 10 == 0 else "touch /work/x")
    live[0].snapshot()
    print("ready", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
