"""One attack each: nothing forges a reward, leaves the sites of the task, or stalls the others."""

from __future__ import annotations

import http.server
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from hostile_site import hostile_task
from palestra.envs.errors import SandboxError
from palestra.envs.web.env import WebEnv
from palestra.envs.web.host import host
from palestra.envs.web.session import MAX_TABS
from palestra.tasks.task import Task
from palestra.tasks.web.actions import act as call
from palestra.tasks.web.miniwob import make

Start = Callable[[Task], WebEnv]


def go(env: WebEnv, url: str) -> str:
    return env.step(call("goto", url=url))[0]


def in_page(env: WebEnv, script: str) -> object:
    """Run a script in the page's own world, as an attacker who got one in would."""
    session = env._session
    assert session is not None
    return host().run(session.tab.evaluate(script), 10)


def click(env: WebEnv, name: str, role: str = "button") -> str:
    return env.step(call("click", target=f'{role} "{name}"'))[0]


# Rewards.


def test_setting_the_reward_globals_changes_nothing(start: Start) -> None:
    env = start(make("click-test", "test", 1))
    in_page(
        env,
        "WOB_RAW_REWARD_GLOBAL = WOB_REWARD_GLOBAL = 1; WOB_DONE_GLOBAL = true; WOB_REWARD_REASON = 'won'",
    )
    *_, terminated, _, _ = env.step("wait 10")
    assert not terminated and env.score().value == 0.0


def test_a_result_cannot_be_replaced_by_a_later_one(start: Start) -> None:
    env = start(make("click-test-2", "test", 1))
    click(env, "TWO")
    in_page(env, "core.EP_TIMER = 1; core.endEpisode(1)")
    assert env.score().value == 0.0 and env.score().parts["raw"] == -1.0


@pytest.mark.parametrize(
    "markup",
    [
        "<img src=x onerror=core.endEpisode(1)>",
        "<svg onload=core.endEpisode(1)>",
        "<iframe srcdoc='<script>parent.core.endEpisode(1)</script>'></iframe>",
        "<script>core.endEpisode(1)</script>",
        "<a id=attack href='javascript:core.endEpisode(1)'>attack</a>",
    ],
)
def test_markup_that_gets_into_a_page_does_not_become_script(start: Start, markup: str) -> None:
    env = start(make("click-test", "test", 1))
    in_page(env, f"document.getElementById('area').insertAdjacentHTML('beforeend', {markup!r})")
    in_page(env, "document.getElementById('attack') && document.getElementById('attack').click()")
    *_, terminated, _, _ = env.step("wait 1000")
    assert not terminated and env.score().value == 0.0


def test_a_page_cannot_change_what_is_seen_of_it(start: Start) -> None:
    lies = "Element.prototype.getAttribute = () => 'lie'; JSON.stringify = () => 'lie'; Object.prototype.url = 'lie';"
    env = start(hostile_task(f"<button aria-label='truth'>x</button><script>{lies}</script>"))
    assert env.view.find("button", "truth") and env.view.url == "http://hostile.test/"


# Addresses.


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)", "data:text/html,<p>hello", "file:///etc/passwd", "about:blank", "chrome://version",
        "http://evil.test/", "https://hostile.test/", "http://127.0.0.1/", "view-source:http://hostile.test/",
        "http://hostile.test@evil.test/", "//evil.test", "blob:http://hostile.test/1", "JavaScript:alert(1)",
        " file:///etc/passwd", "http://hostile.test:81/",
    ],
)  # fmt: skip
def test_the_agent_cannot_leave_the_sites(start: Start, url: str) -> None:
    env = start(hostile_task("here"))
    assert "is not on the sites of this task: http://hostile.test" in go(env, url)
    assert env.view.url == "http://hostile.test/"


@pytest.mark.parametrize(
    "href", ["data:text/html,<title>out", "file:///etc/passwd", "http://evil.test/", "https://evil.test/"]
)
def test_a_link_out_leads_nowhere(start: Start, href: str) -> None:
    env = start(hostile_task(f"<a href='{href}'>out</a>"))
    shown = click(env, "out", "link")
    assert "root:" not in shown and env.view.url.partition(":")[0] in ("http", "chrome-error")
    assert "back" in env.toolbox and "error" not in go(env, "http://hostile.test/")


@pytest.fixture
def listener() -> Iterator[tuple[str, list[str]]]:
    """(address of a server on this machine, what it was asked for)."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

        do_CONNECT = do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}", asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_page_reaches_nothing_but_its_site(start: Start, listener: tuple[str, list[str]]) -> None:
    address, asked = listener
    script = f"""
      fetch('http://{address}/fetch', {{mode: 'no-cors'}}).catch(() => 0);
      fetch('https://{address}/tls', {{mode: 'no-cors'}}).catch(() => 0);
      fetch('http://localhost:{address.split(":")[1]}/name', {{mode: 'no-cors'}}).catch(() => 0);
      new Image().src = 'http://{address}/image';
      navigator.sendBeacon('http://{address}/beacon', 'x');
      try {{ new WebSocket('ws://{address}/socket') }} catch (error) {{}}
      new EventSource('http://{address}/events');
    """
    frame = (
        f"<iframe src='http://{address}/frame'></iframe><link rel=prefetch href='http://{address}/prefetch'>"
    )
    env = start(hostile_task(f"{frame}<script>{script}</script>"))
    for _ in range(3):
        env.step("wait 1000")
    assert asked == []
    refused = {url.rpartition("/")[2] for url in env.blocked}
    assert {"fetch", "image", "frame"} <= refused


# What a page may leave behind.


def test_a_service_worker_is_not_registered(start: Start) -> None:
    script = """navigator.serviceWorker.register('/worker.js').then(
      () => { document.title = 'registered' }, () => { document.title = 'refused' })"""
    env = start(hostile_task(f"<script>{script}</script>", pages={"/worker.js": "self.onfetch = () => 0"}))
    for _ in range(3):
        env.step("wait 500")
    assert env.view.title != "registered"


LEAVE = """
  document.cookie = 'left=1'; localStorage.left = '1'; sessionStorage.left = '1'; window.name = 'left';
  indexedDB.open('left'); caches && caches.open('left');
"""
LOOK = """(async () => {
  const found = [document.cookie, localStorage.left, sessionStorage.left, window.name,
    (await indexedDB.databases()).length || '', self.caches ? (await caches.keys()).length || '' : ''];
  document.getElementById('found').textContent = 'found:' + found.filter(Boolean).join(' ');
})()"""


def test_storage_does_not_leak_into_the_next_episode(start: Start) -> None:
    env = start(hostile_task(f"<script>{LEAVE}</script>"))
    env.step("wait 500")
    first = env._session
    host().run(host().close_idle(), 30)  # so that the context of the first episode is the one used again
    env.reset(options={"task": hostile_task(f"<p id=found>?</p><script>{LOOK}</script>")})
    env.step("wait 500")
    assert env._session is first
    assert "found:" in [e.name for e in env.view.elements]
    assert "error: there is no page to go back to" in env.step("back")[0]


def test_pages_of_one_site_in_two_episodes_share_nothing(start: Start) -> None:
    start(hostile_task(f"<script>{LEAVE}</script>")).step("wait 500")
    other = start(hostile_task(f"<p id=found>?</p><script>{LOOK}</script>"))
    other.step("wait 500")
    assert "found:" in [e.name for e in other.view.elements]


# Windows, dialogs and downloads.


def test_popups_become_tabs_up_to_a_limit(start: Start) -> None:
    script = "for (let i = 0; i < 30; i++) window.open('/more?' + i)"
    env = start(hostile_task(f'<button onclick="{script}">open</button>'))
    click(env, "open")
    env.step("wait 500")
    assert 1 <= len(env.view.tabs) <= MAX_TABS
    assert env.view.url == "http://hostile.test/"


def test_dialogs_are_answered_and_told(start: Start) -> None:
    script = "alert('a'); document.title = confirm('b') + prompt('c', 'd')"
    env = start(hostile_task(f'<button onclick="{script}">ask</button>'))
    shown = click(env, "ask")
    assert "dialog: alert 'a' was accepted" in shown and "dialog: prompt 'c' was accepted" in shown
    assert env.view.title == "trued"


def test_many_dialogs_do_not_stall(start: Start) -> None:
    env = start(hostile_task("<button onclick='for (let i = 0; i < 60; i++) alert(i)'>ask</button>"))
    assert "dialog" in click(env, "ask")


def test_a_page_cannot_be_left_with_a_question(start: Start) -> None:
    env = start(
        hostile_task("<script>onbeforeunload = (event) => { event.preventDefault(); return 'stay' }</script>")
    )
    env.step("click 5,5")
    assert "error" not in go(env, "http://hostile.test/next") and env.view.url.endswith("/next")


def test_a_download_is_not_saved(start: Start) -> None:
    env = start(hostile_task("<a href='/file'>get</a>"))
    shown = click(env, "get", "link") + env.step("wait 500")[0]
    assert "download: 'x.zip' was not saved" in shown


def test_a_page_that_closes_itself_is_a_sandbox_failure_or_goes_on(start: Start) -> None:
    env = start(hostile_task("<button onclick='window.close()'>close</button>"))
    assert "hostile" in click(env, "close")


# Pages that do not come to rest.


def test_endless_redirects_end(start: Start) -> None:
    env = start(hostile_task("<a href='/round'>round</a>"))
    click(env, "round", "link")
    assert "error" not in go(env, "http://hostile.test/")


def test_a_server_that_does_not_answer_is_given_up(start: Start) -> None:
    env = start(hostile_task("<a href='/slow'>slow</a>"))
    click(env, "slow", "link")
    assert env.view.title == "hostile"


def test_a_picture_that_does_not_come_is_given_up(start: Start) -> None:
    add = "document.body.insertAdjacentHTML('beforeend', '<img src=/slow>')"
    env = start(hostile_task(f'<button onclick="{add}">add</button>'))
    assert "hostile" in click(env, "add") and env.view.find("img", "") is not None


def test_pictures_without_end_take_no_turn(start: Start) -> None:
    add = "let i = new Image(), n = 0; document.body.append(i); i.onerror = () => { i.src = '/p' + n++ }; i.onerror()"
    env = start(hostile_task(f'<button onclick="{add}">add</button>'))
    assert "hostile" in click(env, "add") and "hostile" in env.step("wait 100")[0]


def test_timers_without_end_take_no_time(start: Start) -> None:
    env = start(
        hostile_task("<script>function f() { setTimeout(f, 0) }; f(); setInterval(f, 1)</script>here")
    )
    assert "here" in env.step("wait 10000")[0]


def test_a_page_without_end_is_cut(start: Start) -> None:
    script = "document.body.innerHTML = '<p>line</p>'.repeat(50000)"
    env = start(hostile_task(f"<script>addEventListener('load', () => {{ {script} }})</script>"))
    shown = env.step("wait 100")[0]
    assert len(shown) < 8000 and "more elements" in shown


@pytest.mark.parametrize(
    "trap", ["while (true) {}", "const a = []; while (true) a.push(new Array(1e6).fill(a))"]
)
def test_a_page_that_hangs_or_eats_memory_fails_alone(start: Start, trap: str) -> None:
    other = start(hostile_task("still here"))
    env = start(hostile_task(f"<button onclick='{trap}'>trap</button>", command_s=3))
    with pytest.raises(SandboxError):
        click(env, "trap")
        click(env, "trap")
    assert "still here" in other.step("wait 100")[0]
    env.reset(options={"task": hostile_task("again")})
    assert "again" in env.step("wait 100")[0]


def test_a_browser_that_dies_is_started_again(start: Start) -> None:
    env = start(hostile_task("here"))
    launches = host().launches
    os.kill(browser_pid(), signal.SIGKILL)
    with pytest.raises(SandboxError):
        env.step("wait 100")
    env.reset(options={"task": hostile_task("again")})
    assert "again" in env.step("wait 100")[0] and host().launches == launches + 1


def browser_pid() -> int:
    """The browser's main process: the child of Playwright's driver that has no --type."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                line = file.read()
        except OSError:
            continue
        if b"chrom" in line.partition(b"\0")[0] and b"--type=" not in line and _ours(int(name)):
            return int(name)
    raise LookupError("there is no browser")


def _ours(pid: int) -> bool:
    """Whether this process is an ancestor of `pid`."""
    while pid > 1 and pid != os.getpid():
        with open(f"/proc/{pid}/stat") as file:
            pid = int(file.read().rpartition(")")[2].split()[1])
    return pid == os.getpid()
