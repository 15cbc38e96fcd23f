"""One policy over several processes: FSDP2 shards weights, gradients and optimizer; each computes its part of a batch.

    torchrun --nproc-per-node 2 ...        every process builds the same policy and updater
    team = Team.from_environment()
    policy.shard(team)
    if team.leads:
        with team.leading(): ... the trainer uses policy and updater ...
    else: team.follow(policy=policy, updater=updater)

The first process runs the trainer, the proxy and the environments. The methods of policy and updater that need
everybody are marked `meeting`: called in the first process, they are called in all. The gradient of a batch is the sum
over its micro-batches wherever they are computed, so the number of processes changes nothing but rounding
(tests/training/test_sharded.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import wraps
from typing import Any, Protocol, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from palestra.training.errors import TrainingError
from palestra.training.layouts import MicroBatch


class Team:
    """The processes that train together."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size
        self._meeting = self._deserted = False

    @classmethod
    def from_environment(cls) -> Team:
        """What torchrun says; alone without it. Joins the process group, over NCCL where there are GPUs."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            return cls()
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("cuda:nccl,cpu:gloo" if torch.cuda.is_available() else "gloo")
        return cls(dist.get_rank(), size)

    @property
    def leads(self) -> bool:
        """Whether this is the first process."""
        return self.rank == 0

    def share(self, value: Any) -> Any:
        """The first process's `value`, on all."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def call(self, who: str, method: str, args: tuple[Any, ...]) -> None:
        """In the first process, before it calls `method` itself: have the others do the same."""
        if self.size > 1 and self.leads and not self._meeting:
            self.share((who, method, args))

    def follow(self, **objects: Any) -> None:
        """In any other process: do what the first one does to `objects`, until it dismisses.

        Expected errors happen to all alike; the first process says what they are, and may go on after them.
        """
        while (order := self.share(None)) is not None:
            who, method, args = order
            with suppress(*EXPECTED):
                getattr(objects[who], method)(*args)

    def dismiss(self) -> None:
        """End the others' `follow`."""
        if self.size > 1 and self.leads:
            self.share(None)

    @contextmanager
    def leading(self) -> Iterator[None]:
        """In the first process: dismisses the others at the end, after an error too.

        Not after one that left them alone in a meeting, nor after an interrupt: torchrun ends them then, as soon as
        this process has ended.
        """
        try:
            yield
        except Exception:
            if not self._deserted:
                with suppress(RuntimeError):  # gone already
                    self.dismiss()
            raise
        self.dismiss()

    @contextmanager
    def met(self) -> Iterator[None]:
        """Inside, everybody is there already."""
        before, self._meeting = self._meeting, True
        try:
            yield
        except EXPECTED:
            raise
        except BaseException:
            self._deserted = True
            raise
        finally:
            self._meeting = before

    def part(self, parts: Sequence[MicroBatch]) -> list[MicroBatch]:
        """This process's share of `parts`: as many as everybody's, filled up with ones that weigh nothing.

        All must compute equally often, since every forward and backward pass is a meeting.
        """
        mine = list(parts[self.rank :: self.size])
        rounds = -(-len(parts) // self.size)
        return mine + [_weightless(parts[0])] * (rounds - len(mine))

    def total(self, value: float) -> float:
        """The sum of `value` over all processes."""
        return self._reduced(value, dist.ReduceOp.SUM)

    def largest(self, value: float) -> float:
        """The largest `value` of any."""
        return self._reduced(value, dist.ReduceOp.MAX)

    def every(self, values: Tensor) -> Tensor:
        """`values` (n,) of all processes, end to end."""
        if self.size == 1:
            return values
        boxes: list[Any] = [None] * self.size
        dist.all_gather_object(boxes, values.cpu())
        return torch.cat(boxes)

    def _reduced(self, value: float, how: Any) -> float:
        if self.size == 1:
            return value
        box = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(box, how)
        return float(box)


EXPECTED = (TrainingError, OSError)
"""What all processes of a meeting run into alike: what is not finite, a file that cannot be read."""
ALONE = Team()


class _Member(Protocol):
    who: str
    team: Team


M = TypeVar("M", bound=Callable[..., Any])


def meeting(method: M) -> M:
    """A method that all processes of a team run together."""

    @wraps(method)
    def together(self: _Member, *args: Any) -> Any:
        self.team.call(self.who, method.__name__, args)
        with self.team.met():
            return method(self, *args)

    return cast(M, together)


def shard(model: nn.Module, scorer: nn.Module) -> None:
    """Distribute the weights of `model`, layer by layer, for calls that go through `scorer`, which holds it."""
    from torch.distributed.fsdp import FSDPModule, fully_shard

    decoder: Any = model.get_decoder()  # type: ignore[operator]
    for layer in decoder.layers:
        fully_shard(layer)
    fully_shard(scorer, reshard_after_forward=False)
    for module in scorer.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # a sum over processes, not a mean
            module.set_force_sum_reduction_for_comms(True)


def whole(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`state` with sharded tensors put together, on every process. A meeting where any is sharded."""
    from torch.distributed.tensor import DTensor

    return {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in state.items()}


def spread(value: Tensor, like: Tensor) -> Tensor:
    """`value`, which is whole, distributed as `like` is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor) or not value.ndim:
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)


def _weightless(part: MicroBatch) -> MicroBatch:
    zero = torch.zeros_like(part.weights)
    return replace(part, weights=zero, advantages=zero)
