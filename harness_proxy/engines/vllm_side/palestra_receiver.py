"""Weights that a trainer broadcasts, received by the workers of a vLLM server.

`--worker-extension-cls palestra_receiver.WeightReceiver` adds the methods to vLLM's worker, and /collective_rpc calls
them. Trainer and workers form a process group of their own, beside those that either has: NCCL between GPUs, gloo on
the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor

dist: Any = torch.distributed
"""Its classes in C++ are not known to type checkers."""
Spec = tuple[str, str, list[int]]
"""Name, dtype and shape of a tensor."""


class WeightReceiver:
    """Mixed into a worker; expects `rank`, `device` and `reload_weights`."""

    rank: int
    device: torch.device
    reload_weights: Any

    def palestra_workers(self) -> str:
        """One answer per worker, so that the trainer can count them."""
        return str(self.rank)

    def palestra_join(self, host: str, port: int, size: int, timeout_s: float) -> None:
        """Meet the trainer, which is number 0 of `size`."""
        store = dist.TCPStore(host, port, size, is_master=False, timeout=timedelta(seconds=timeout_s))
        self._palestra_group = group(store, self.rank + 1, size, self.device, timeout_s)

    def palestra_receive(self, specs: Sequence[Spec]) -> None:
        """Load what the trainer sends, in the order of `specs`; all of it is received, whatever comes of it."""
        received = self._palestra_received(specs)
        try:
            self.reload_weights(weights_iterator=received)
        finally:
            for _ in received:
                pass

    def _palestra_received(self, specs: Sequence[Spec]) -> Iterator[tuple[str, Tensor]]:
        for name, dtype, shape in specs:
            value = torch.empty(shape, dtype=getattr(torch, dtype), device=self.device)
            broadcast(self._palestra_group, value)
            yield name, value


def group(store: Any, rank: int, size: int, device: torch.device, timeout_s: float) -> Any:
    """A process group over `store` for tensors on `device`."""
    timeout = timedelta(seconds=timeout_s)
    named = dist.PrefixStore("palestra-weights", store)
    if device.type != "cuda":
        return dist.ProcessGroupGloo(named, rank, size, timeout)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(named, rank, size, options)


def broadcast(members: Any, value: Tensor) -> None:
    """From number 0 to all others."""
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = 0, 0
    members.broadcast([value], options).wait()
