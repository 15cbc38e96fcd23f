"""palestra/Swe-v0: what each tool answers, what an anchor tells apart, and how an episode is judged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import swe
from palestra.envs.errors import EnvSetupError
from palestra.envs.swe import SweEnv
from palestra.envs.validate import validate_task
from palestra.rewards.score import GraderError
from palestra.tasks.registry import find_task, load_tasks
from palestra.tasks.task import Budget, Task, TaskSet


@pytest.fixture
def env() -> Iterator[SweEnv]:
    swe.machines()
    made = SweEnv(TaskSet("one", [swe.task()]))
    made.reset(seed=0)
    yield made
    made.close()


def call(name: str, **arguments: object) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def say(env: SweEnv, name: str, **arguments: object) -> str:
    return env.step(call(name, **arguments))[0]


def anchor(env: SweEnv, command: str) -> str:
    return str(env.step(call("shell", command=command))[4]["anchor"])


def test_the_shell_keeps_its_directory_and_says_how_commands_end(env: SweEnv) -> None:
    assert say(env, "shell", command="cd intervals; pwd") == "/work/repo/intervals\n[exit code 0]"
    assert (
        say(env, "shell", command="ls; echo oops >&2; exit 3")
        == "__init__.py\ncore.py\ntext.py\noops\n[exit code 3]"
    )
    assert say(env, "shell", command="if").endswith("[exit code 2]")
    assert say(env, "shell", command="rm -rf ../tests; cd /; pwd") == "/\n[exit code 0]"
    assert say(env, "shell", command="printf x") == "x\n[exit code 0]"


def test_a_directory_that_is_gone_is_left(env: SweEnv) -> None:
    say(env, "shell", command="mkdir deep && cd deep && rmdir ../deep")
    assert say(env, "shell", command="pwd") == "/work/repo\n[exit code 0]"


def test_long_output_loses_its_middle(env: SweEnv) -> None:
    said = say(env, "shell", command="seq 100000")
    assert said.startswith("1\n2\n") and said.endswith("99999\n100000\n[exit code 0]") and len(said) < 10_200
    assert "characters left out ...]" in said


def test_a_command_that_takes_too_long_is_killed_with_all_it_started() -> None:
    swe.machines()
    task = swe.task().model_copy(update={"budget": Budget(command_s=1)})
    env = SweEnv()
    env.reset(options={"task": task})
    said = say(env, "shell", command="(sleep 300; touch late) & echo started; sleep 300")
    assert said == "started\n[it took more than 1 s and was killed, with all that ran]"
    assert "sleep" not in say(env, "shell", command="ps -e -o comm")
    env.close()


def test_reading(env: SweEnv) -> None:
    said = say(env, "read", path="intervals/core.py", first_line=8, lines=2).splitlines()
    assert said[0].endswith("8 ") or said[0].split()[0] == "8"
    assert said[-1].endswith(" more lines]")
    assert say(env, "read", path="intervals/core.py", first_line=9999).startswith("(the file has ")
    assert say(env, "read", path="gone.py") == "error: cannot read gone.py: No such file or directory"
    assert say(env, "read", path="tests").startswith("error: cannot read tests: ")
    say(env, "shell", command=r"printf '\377\0' > blob")
    assert say(env, "read", path="blob") == "error: blob is not UTF-8 text: use the shell"


def test_editing_replaces_exactly_one_place(env: SweEnv) -> None:
    assert say(env, "edit", path="a.txt", old="", new="one\ntwo\n") == "made a.txt"
    assert say(env, "edit", path="a.txt", old="two", new="three") == "edited a.txt, line 2"
    assert say(env, "shell", command="cat a.txt") == "one\nthree\n[exit code 0]"
    assert "exists: give the text to replace" in say(env, "edit", path="a.txt", old="", new="x")
    assert "occurs 3 times in a.txt" in say(env, "edit", path="a.txt", old="e", new="x")
    assert "occurs 0 times" in say(env, "edit", path="a.txt", old="absent", new="x")
    assert "cannot write /etc/passwd" in say(env, "edit", path="/etc/passwd", old="root:x:0:0", new="x")


def test_editing_keeps_a_script_executable(env: SweEnv) -> None:
    say(env, "shell", command="echo 'echo hi' > run; chmod 755 run")
    say(env, "edit", path="run", old="hi", new="ho")
    assert say(env, "shell", command="./run") == "ho\n[exit code 0]"


def test_searching(env: SweEnv) -> None:
    assert say(env, "search", pattern="def (parse|format)_set", path="intervals") == (
        "intervals/text.py:8:def parse_set(text: str) -> IntervalSet:\n"
        "intervals/text.py:24:def format_set(numbers: IntervalSet) -> str:"
    )
    assert say(env, "search", pattern="nowhere at all") == "error: nothing matches 'nowhere at all' below ."
    assert say(env, "search", pattern="(").startswith("error: grep: ")
    assert say(env, "search", pattern=".").endswith("\n[more lines match]")


def test_an_anchor_names_files_and_directory_and_not_the_way(env: SweEnv) -> None:
    start = anchor(env, "true")
    changed = anchor(env, "echo x > new.txt")
    assert changed != start
    assert anchor(env, "rm new.txt") == start == anchor(env, "cat README.md")
    assert (
        anchor(env, "touch -d 1999-01-01 README.md; git commit -qm x --allow-empty; python3 -m pytest -q")
        == start
    )
    assert anchor(env, "cd tests") != start
    assert anchor(env, "cd ..; printf 'x\\n' > new.txt") == changed
    assert anchor(env, "chmod +x new.txt") != changed


def test_what_is_ignored_by_git_counts_too(env: SweEnv) -> None:
    say(
        env,
        "shell",
        command="echo '*' > .gitignore; git add -f .gitignore; git commit -qm ignore; echo data > hidden.bin",
    )
    assert b"hidden.bin" in env.diff() and b".gitignore" in env.diff()


def test_a_repair_scores_one_and_nothing_scores_zero(env: SweEnv) -> None:
    assert env.score().value == 0.0 and env.score().evidence == "nothing was submitted"
    say(env, "edit", path=swe.PATH, old="end < start", new="end <= start")
    observation, reward, terminated, truncated, _ = env.step(call("submit", summary="empty intervals go"))
    assert (observation, reward, terminated, truncated) == ("submitted", 1.0, True, False)


def test_an_agent_that_breaks_its_machine_gets_a_valid_zero(env: SweEnv) -> None:
    say(env, "shell", command="rm -rf /work/repo; touch /work/repo")
    score = env.score()
    assert score.valid and score.value == 0.0


def test_running_out_of_turns_is_judged_as_it_stands() -> None:
    swe.machines()
    env = SweEnv()
    env.reset(options={"task": swe.task().model_copy(update={"budget": Budget(turns=1)})})
    repair = call("edit", path=swe.PATH, old="end < start", new="end <= start")
    assert env.step(repair)[1:4] == (1.0, False, True)
    env.close()


def test_a_snapshot_brings_files_and_directory_back(env: SweEnv) -> None:
    say(env, "shell", command="cd tests; echo 1 > kept")
    kept = env.snapshot()
    say(env, "shell", command="rm -rf *; cd /")
    env.restore(kept)
    assert say(env, "shell", command="pwd; cat kept") == "/work/repo/tests\n1\n[exit code 0]"


def test_a_task_without_a_tree_that_can_be_built_says_so() -> None:
    swe.machines()
    bad = swe.task(source=None, workdir="/nowhere")
    with pytest.raises(EnvSetupError, match="failed"):
        SweEnv().reset(options={"task": bad})


def test_a_suite_that_cannot_run_is_no_measurement() -> None:
    swe.machines()
    suite = swe.repair().suite.model_copy(update={"python": "/no/such/python"})
    env = SweEnv()
    env.reset(options={"task": swe.task(suite=suite)})
    say(env, "shell", command="echo x > y")
    with pytest.raises(GraderError, match="the test suite did not run"):
        env.score()
    env.close()


def test_an_agent_without_tools_writes_one_command_in_a_block(env: SweEnv) -> None:
    observation, *_, info = env.step("First I look.\n\n```bash\ncd tests\nls *.py\n```\nThen I think.")
    assert observation == "test_core.py\ntest_text.py\n[exit code 0]" and info["valid_action"]
    for text in ("no command", "```bash\nls\n```\n```bash\npwd\n```"):
        observation, *_, info = env.step(text)
        assert observation.startswith("error: answer with a tool call, or with one command")
        assert not info["valid_action"]
    env.step(f"```mswea_bash_command\nsed -i 's/end < start/end <= start/' ../{swe.PATH}\n```")
    end = env.step("```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```")
    assert end[1:4] == (1.0, True, False)


def test_what_a_program_did_past_the_environment_is_a_step_with_its_anchor(env: SweEnv) -> None:
    before = env.snapshot()
    by_step = anchor(env, "echo x > new.txt")
    env.restore(before)
    machine = env.machine
    machine.exec("echo x > new.txt", cwd="/work/repo")
    observation, reward, terminated, truncated, info = env.witness("made new.txt")
    assert (observation, reward, terminated, truncated) == ("made new.txt", 0.0, False, False)
    assert info["anchor"] == by_step and info["valid_action"]


@pytest.fixture
def harbor(tmp_path: Path) -> Task:
    check = "[ -f /work/hello ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"
    for path, text in {
        "task.toml": "[verifier]\ntimeout_sec = 20\n",
        "instruction.md": "Make the file hello.",
        "environment/Dockerfile": "FROM python\nWORKDIR /work/place\n",
        "tests/test.sh": check,
        "solution/solve.sh": "touch /work/hello\n",
    }.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    swe.machines()
    return find_task(f"harbor?path={tmp_path}", f"harbor/{tmp_path.name}")


def test_a_script_judges_the_machine(harbor: Task) -> None:
    env = SweEnv()
    env.reset(options={"task": harbor})
    assert env.score().value == 0.0
    assert env.step(env.solution()[0])[4]["valid_action"] and env.score().value == 1.0
    env.close()


@pytest.mark.parametrize(
    "cheat",
    [
        "mkdir -p /logs/verifier && echo 1 > /logs/verifier/reward.txt && chmod 444 /logs/verifier/reward.txt",
        "(while true; do echo 1 > /logs/verifier/reward.txt; done) > /dev/null 2>&1 &",
        "ln -s /work/mine /logs; mkdir -p /work/mine/verifier; echo 1 > /work/mine/verifier/reward.txt",
        "mkdir /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh",
    ],
)
def test_a_reward_that_the_agent_wrote_does_not_count(harbor: Task, cheat: str) -> None:
    env = SweEnv()
    env.reset(options={"task": harbor})
    say(env, "shell", command=cheat)
    assert env.score().value == 0.0
    env.close()


@pytest.mark.parametrize("written", ["nan", "2", "-1", "inf", "well done"])
def test_a_script_must_write_a_number_from_0_to_1(harbor: Task, written: str) -> None:
    script = Path(harbor.data["extra"]["folder"]) / "tests" / "test.sh"
    script.write_text(f"echo {written} > /logs/verifier/reward.txt\n")
    env = SweEnv()
    env.reset(options={"task": harbor})
    with pytest.raises(GraderError, match="no number from 0 to 1"):
        env.score()
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 45, 90])
def test_tasks_of_swe_tiny_are_sound(number: int) -> None:
    swe.machines()
    task = load_tasks("swe-tiny")[number]
    report = validate_task(task)
    assert report.passed, report
