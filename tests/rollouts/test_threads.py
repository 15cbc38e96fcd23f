"""Threads of environments: what a crew gives back, and what a slow or broken call does to the others."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from palestra.rollouts.threads import Crew, CrewHost, Host, OwnThread


def raises(error: BaseException) -> Callable[[], None]:
    def function() -> None:
        raise error

    return function


@pytest.fixture(params=["own thread", "crew"])
def host(request: pytest.FixtureRequest) -> Host:
    return OwnThread("test") if request.param == "own thread" else CrewHost(Crew())


class TestEveryHost:
    async def test_runs_outside_of_the_event_loop_and_gives_the_result(self, host: Host) -> None:
        thread = await host.run(threading.current_thread)
        assert thread is not threading.current_thread()

    async def test_raises_what_the_call_raises(self, host: Host) -> None:
        with pytest.raises(KeyError, match="lost"):
            await host.run(raises(KeyError("lost")))
        assert await host.run(lambda: 1) == 1

    @pytest.mark.parametrize("error", [StopIteration("end"), SystemExit(3)])
    async def test_what_a_future_cannot_carry_is_a_runtime_error(
        self, host: Host, error: BaseException
    ) -> None:
        with pytest.raises(RuntimeError, match=type(error).__name__):
            await host.run(raises(error))

    async def test_a_call_that_has_begun_outlives_its_caller_and_the_end_waits_for_it(
        self, host: Host
    ) -> None:
        begun, go_on, log = threading.Event(), threading.Event(), list[str]()

        def step() -> None:
            begun.set()
            go_on.wait(5)
            log.append("step")

        caller = asyncio.create_task(host.run(step))
        await asyncio.to_thread(begun.wait, 5)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert not host.idle
        ended = host.end(lambda: log.append("end"))
        go_on.set()
        await asyncio.wrap_future(ended)
        assert log == ["step", "end"]
        assert host.idle

    async def test_is_idle_before_the_first_call_and_after_the_last(self, host: Host) -> None:
        assert host.idle
        await host.run(lambda: None)
        assert host.idle


class TestCrew:
    async def test_calls_of_one_round_share_a_thread_and_keep_their_order(self) -> None:
        crew, log = Crew(), list[int]()

        def call(number: int) -> Callable[[], Any]:
            def function() -> int:
                log.append(number)
                return threading.get_ident()

            return function

        calls = [crew.submit(call(n)) for n in range(100)]
        idents = await asyncio.gather(*(c.future for c in calls))
        assert len(set(idents)) == 1
        assert log == list(range(100))

    async def test_calls_behind_a_stuck_one_go_on(self) -> None:
        crew, release = Crew(), threading.Event()
        stuck = crew.submit(lambda: release.wait(10))
        others = [crew.submit(lambda n=n: n) for n in range(20)]  # type: ignore[misc]
        assert await asyncio.gather(*(c.future for c in others)) == list(range(20))
        assert not stuck.future.done()
        release.set()
        assert await stuck.future is True

    async def test_many_stuck_calls_leave_room_for_others(self) -> None:
        crew, release = Crew(), threading.Event()
        stuck = [crew.submit(lambda: release.wait(10)) for _ in range(20)]
        assert await crew.submit(lambda: "through").future == "through"
        release.set()
        assert all(await asyncio.gather(*(c.future for c in stuck)))

    async def test_results_come_back_while_a_long_batch_is_still_at_work(self) -> None:
        crew = Crew()
        calls = [crew.submit(lambda: time.sleep(0.003)) for _ in range(20)]
        await calls[0].future
        assert not calls[-1].future.done()
        await calls[-1].future

    async def test_a_call_whose_caller_left_before_it_began_does_not_run(self) -> None:
        crew, log = Crew(), list[str]()
        call = crew.submit(lambda: log.append("ran"))
        call.future.cancel()
        await crew.submit(lambda: None).future
        assert log == []
        assert not call.busy.locked()

    async def test_a_broken_call_does_not_touch_its_neighbours(self) -> None:
        crew = Crew()
        calls = [crew.submit(f) for f in (lambda: 1, raises(ValueError("mine")), lambda: 3)]
        results = await asyncio.gather(*(c.future for c in calls), return_exceptions=True)
        assert [results[0], str(results[1]), results[2]] == [1, "mine", 3]

    async def test_hundreds_of_callers_at_once_each_get_their_own_result(self) -> None:
        crew = Crew()

        async def play(name: int) -> list[tuple[int, int]]:
            host = CrewHost(crew)
            return [await host.run(lambda turn=turn: (name, turn)) for turn in range(5)]  # type: ignore[misc]

        assert await asyncio.gather(*map(play, range(300))) == [
            [(n, t) for t in range(5)] for n in range(300)
        ]
