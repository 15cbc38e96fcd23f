"""A small deterministic training run that can be killed at any moment. Usage: resume_run.py MODEL RUN_DIR KILLS SEED.

One process imports everything once and forks a child per start, so that a restart costs what a restart should.
The child notes every rollout that was acknowledged (`append` has returned) in RUN_DIR/acknowledged.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import ClassVar

import gymnasium
import torch
import transformers  # noqa: F401  forked children need not import it again

from palestra.envs.env import TaskEnv
from palestra.harness_proxy.engines.embedded.process import ProcessEngine
from palestra.rollouts.loop import run
from palestra.tasks.task import Budget, Task, TaskSet
from palestra.training.config import TrainConfig
from palestra.training.recipe import Recipe, training
from palestra.training.trainer import StepResult
from palestra.trajectories.model import Score, Trajectory
from palestra.trajectories.store import Store

STEPS = 20
ENV_ID = "palestra-testing/ResumeParity-v0"


class Parity(TaskEnv):
    """Two turns of any text. Scores 1 where the agent's words have an even number of bytes in all."""

    family: ClassVar[str] = "parity"

    def _begin(self, task: Task) -> str:
        self._bytes, self._turns = 0, 0
        return task.instruction

    def _on_text(self, text: str) -> str:
        self._bytes, self._turns = self._bytes + len(text.encode()), self._turns + 1
        if self._turns == 2:
            self.finish()
        return "more"

    def _anchor(self) -> str:
        return f"{self._turns}/{self._bytes % 2}"

    def _score(self) -> Score:
        return Score(float(self._bytes % 2 == 0), True)


gymnasium.register(ENV_ID, entry_point=lambda **_: Parity(), disable_env_checker=True, order_enforce=False)


def tasks() -> TaskSet:
    """Eleven of them, so that steps straddle the ends of epochs."""
    budget = Budget(turns=4, tokens=400, wall_s=600)
    made = [
        Task(id=f"t{i}", family="parity", env=ENV_ID, split="train", instruction=f"go {i}", budget=budget)
        for i in range(11)
    ]
    return TaskSet("parity", made)


class NotingStore(Store):
    """Notes what it has acknowledged."""

    def append(self, trajectory: Trajectory) -> None:
        super().append(trajectory)
        with (self.path.parent / "acknowledged").open("a") as notes:
            notes.write(trajectory.rollout.rollout_id + "\n")


async def _train(model: Path, run_dir: Path) -> None:
    config = TrainConfig(
        steps=STEPS,
        groups_per_step=3,
        group_size=3,
        max_reply_tokens=6,
        max_logprob_gap=1e-4,
        threads=1,
        seed=7,
    )
    recipe = Recipe(model=model, tasks="resume_run:tasks", run_dir=run_dir, deterministic=True, train=config)

    async def on_step(result: StepResult) -> None:
        with (run_dir / "steps").open("a") as notes:
            notes.write(f"{result.step}\n")

    with NotingStore.open(run_dir / "store", write=True) as store:
        async with training(recipe, store) as trainer:
            engine = trainer._engine
            assert isinstance(engine, ProcessEngine)
            with (run_dir / "engines").open("a") as notes:
                notes.write(f"{engine._process.pid}\n")
            (run_dir / f"ready-{os.getpid()}").touch()
            await trainer.train(on_step)


def _start(model: Path, run_dir: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        run(_train(model, run_dir))
        code = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _kill_later(pid: int, run_dir: Path, rng: random.Random, from_ready: bool) -> bool:
    """SIGKILL at a random moment; whether the child was still running."""
    while from_ready and not (run_dir / f"ready-{pid}").exists():
        if os.waitpid(pid, os.WNOHANG)[0]:
            raise SystemExit("a restarted run failed")
        time.sleep(0.005)
    time.sleep(rng.uniform(0.0, 0.5 if from_ready else 2.0))
    os.kill(pid, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def main() -> None:
    model, run_dir, kills, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    run_dir.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    rng = random.Random(seed)
    for number in range(kills):
        killed = _kill_later(_start(model, run_dir), run_dir, rng, from_ready=number % 5 != 4)
        print("killed" if killed else "ended", flush=True)
    _, status = os.waitpid(_start(model, run_dir), 0)
    print("exit", os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    sys.modules["resume_run"] = sys.modules["__main__"]
    main()
