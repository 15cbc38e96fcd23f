"""How rollouts ended: the panel above one of them, and a table of many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich import box
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from palestra.trajectories.model import Rollout, Score, Trajectory
from palestra.viewer.text import number, visible


def header(trajectory: Trajectory, encoding: str = "utf-8") -> Panel:
    """What was attempted, how it ended, what it took."""
    rollout = trajectory.rollout
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in _facts(trajectory):
        text = value if isinstance(value, Text) else Text(value)
        grid.add_row(name, _visible(text, encoding))
    title = Text(f"rollout {visible(rollout.rollout_id, encoding)}", "bold")
    border = "red" if rollout.reward is None else "none"
    return Panel(grid, title=title, title_align="left", border_style=border, padding=(0, 1))


def summary_table(rollouts: Iterable[Rollout]) -> Table:
    """One row per rollout: its id (run, group with its task, sample), its reward, how it ended."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("rollout", overflow="fold", ratio=1)
    table.add_column("reward", justify="right", no_wrap=True)
    table.add_column("end", overflow="fold", max_width=24)
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("findings", justify="right")
    for rollout in rollouts:
        table.add_row(*_row(rollout))
    return table


def _row(rollout: Rollout) -> Iterator[Text]:
    yield Text(visible(rollout.rollout_id))
    yield Text("none", "red") if rollout.reward is None else Text(number(rollout.reward))
    yield _end(rollout)
    yield Text(f"{rollout.timings['total']:.1f}" if "total" in rollout.timings else "-")
    yield Text(str(len(rollout.findings)) if rollout.findings else "-")


def _end(rollout: Rollout) -> Text:
    if rollout.failure is not None:
        return Text(visible(f"FAILED in {rollout.failure.boundary} at {rollout.failure.stage}"), "red")
    if rollout.reward is None:
        return Text("not judged", "red")
    return Text("truncated", "yellow") if rollout.truncated else Text("finished")


def _facts(trajectory: Trajectory) -> Iterator[tuple[str, Text | str]]:
    rollout = trajectory.rollout
    yield from _ending(rollout)
    yield "task", rollout.task_id
    yield "run", f"{rollout.run_id}, group {rollout.group_id}, sample {rollout.sample_index}"
    yield "attempt", f"{rollout.attempt}, seed {rollout.seed}, mode {rollout.mode}"
    yield "harness", f"{rollout.harness} {rollout.harness_version}, capture level {rollout.capture_level}"
    if rollout.policy_versions is not None:
        yield "policy", "version {} to {}".format(*rollout.policy_versions)
    yield "size", _size(trajectory)
    if rollout.timings:
        yield "seconds", ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in rollout.timings.items())
    for finding in rollout.findings:
        yield "finding", Text(finding, "yellow")


def _ending(rollout: Rollout) -> Iterator[tuple[str, Text | str]]:
    if (failure := rollout.failure) is not None:
        again = ", worth a retry" if failure.retryable else ""
        yield (
            "FAILED",
            Text(f"in {failure.boundary} at {failure.stage}{again}: {failure.message}", "bold red"),
        )
        yield "reward", Text("none: a failure is not a zero", "red")
    elif rollout.score is not None:
        yield "reward", _reward(rollout.score)
        yield "grader", f"{rollout.score.grader} {rollout.score.grader_version}".strip() or "not named"
        if rollout.score.evidence:
            yield "evidence", rollout.score.evidence
    if rollout.truncated:
        yield "end", Text("truncated: a budget ran out", "yellow")


def _reward(score: Score) -> Text:
    if score.value is None:
        return Text("none: the outcome could not be judged", "bold red")
    parts = ", ".join(f"{name} {number(value)}" for name, value in score.parts.items())
    return Text(number(score.value), "bold green" if score.value > 0 else "bold").append(
        f"  ({parts})" if parts else "", "not bold"
    )


def _size(trajectory: Trajectory) -> str:
    tokens = sum(len(node.token_ids) for node in trajectory.nodes)
    sampled = sum(int(node.sampled.sum()) for node in trajectory.nodes)
    return (
        f"{len(trajectory.calls)} calls, {len(trajectory.steps)} steps, "
        f"{tokens} distinct tokens of which {sampled} were sampled"
    )


def _visible(text: Text, encoding: str) -> Text:
    """The same, with escapes; its style and the spans on it stay where nothing had to be escaped."""
    clean = visible(text.plain, encoding)
    return text if clean == text.plain else Text(clean, text.style)
