"""palestra/Web-v0: what an agent sees, what its actions do, and what can be had besides."""

from __future__ import annotations

import hashlib
import html
import json
from collections.abc import Callable
from contextlib import closing
from io import BytesIO
from typing import Literal

import pytest

from hostile_site import hostile_task
from palestra.envs.errors import EnvSetupError
from palestra.envs.tools import ToolError
from palestra.envs.web.env import WebEnv
from palestra.envs.web.hands import parse_target
from palestra.envs.web.spoken import parse_text
from palestra.tasks.task import Task
from palestra.tasks.web.actions import act as call

Start = Callable[[Task], WebEnv]

FORM = """
<h1>Order</h1><form><label>Name <input name=n></label><label>Kind <select><option>tea<option>coffee</select></label>
<label><input type=checkbox> gift</label><input type=date aria-label=Day><input type=file aria-label=Bill>
<textarea aria-label=Note>old</textarea><button type=button onclick="document.title += '!'">Send</button></form>
<div id=over onmouseover="this.textContent = 'hovered'" tabindex=0>area</div>
<div style="height: 3000px"></div><a href="/next">Next</a>
"""


def act(env: WebEnv, tool: str, /, **arguments: object) -> str:
    return env.step(call(tool, **arguments))[0]


@pytest.fixture
def form(start: Start) -> WebEnv:
    return start(hostile_task(FORM, pages={"/next": "<title>next</title>there <a href='/'>home</a>"}))


def test_the_page_as_text(form: WebEnv) -> None:
    assert form.view.text(2000).splitlines() == [
        "tab 1 of 1: hostile, http://hostile.test/",
        f"scrolled 0 of {form.view.scroll[1] - 768} pixels",
        '[1] heading "Order"',
        '[2] textbox "Name"',
        '[3] combobox "Kind" value="tea" options=tea|coffee',
        '[4] checkbox "gift"',
        '[5] datepicker "Day"',
        '[6] filepicker "Bill"',
        '[7] textbox "Note" value="old"',
        '[8] button "Send"',
        '[9] text "area"',
        '[10] link "Next"',
    ]


def test_fields_by_id_and_by_name(form: WebEnv) -> None:
    act(form, "fill", target=2, text="Ada")
    act(form, "type", text=" L", target='textbox "Name"')
    act(form, "select", target='combobox "Kind"', options="coffee")
    act(form, "click", target="4")
    act(form, "fill", target='datepicker "Day"', text="2024-06-09")
    act(form, "fill", target='textbox "Note"', text="")
    act(form, "upload", target=6, name="bill.txt", content="12 euros")
    found = {e.name: e for e in form.view.elements}
    assert found["Name"].value == "Ada L" and found["Kind"].value == "coffee"
    assert "checked" in found["gift"].states and found["Day"].value == "2024-06-09"
    assert found["Note"].value == "" and found["Bill"].value == "bill.txt"


def test_mouse_and_keyboard(form: WebEnv) -> None:
    act(form, "click", target=8)
    act(form, "double_click", target=8)
    assert form.view.title == "hostile!!!"
    act(form, "hover", target=9)
    assert form.view.find("text", "hovered")
    act(form, "press", key="Shift+Tab", target=7)
    assert form.view.focused == 6
    act(form, "scroll", down=500)
    assert form.view.scroll[0] == 500


def test_clicking_at_coordinates(form: WebEnv) -> None:
    session = form._session
    assert session is not None
    from palestra.envs.web.host import host

    x, y, width, height = host().run(session.tab.ask("box", 8), 10)
    act(form, "click", target=f"{x + width / 2},{y + height / 2}")
    assert form.view.title == "hostile!"
    assert "outside of the window" in act(form, "click", target="5000,3")


def test_pages_and_history(form: WebEnv) -> None:
    act(form, "click", target='link "Next"')
    assert form.view.title == "next"
    act(form, "back")
    assert form.view.title == "hostile"
    act(form, "forward")
    assert form.view.url == "http://hostile.test/next"
    assert "no page to go forward to" in act(form, "forward")


def test_tabs(form: WebEnv) -> None:
    act(form, "open_tab", url="http://hostile.test/next")
    assert (
        form.view.tab == 1
        and len(form.view.tabs) == 2
        and "tab 1: http://hostile.test/" in form.view.text(999)
    )
    act(form, "switch_tab", number=1)
    assert form.view.title == "hostile"
    act(form, "switch_tab", number=2)
    act(form, "close_tab")
    assert list(form.view.tabs) == ["http://hostile.test/"]
    assert "only tab" in act(form, "close_tab")


@pytest.mark.parametrize(
    ("action", "error"),
    [
        ("click 99", "there is no element [99] on this page"),
        ('click "button \\"Save\\""', 'there is no button "Save" on this page'),
        ("click somewhere", "names no element"),
        ("fill 8 x", "cannot be filled in: it is a button"),
        ("select 3 milk", "the options are tea, coffee"),
        ("press Nokey", "there is no key 'Nokey'"),
        ("fill 5 tomorrow", '"tomorrow" is not a valid value for a date field'),
        ("upload 2 x.txt y", "takes no files"),
        ("upload 6 ../x y", "is not a plain file name"),
        ("close_tab", "only tab"),
        ("dance", "answer with a tool call"),
        ("click", "bad arguments for click"),
    ],
)
def test_mistakes_are_told(form: WebEnv, action: str, error: str) -> None:
    assert error in form.step(action)[0]


def test_something_above_an_element_is_named(start: Start) -> None:
    veil = "<div style='position: fixed; inset: 0; background: white' onclick='this.remove()'>cookies?</div>"
    env = start(hostile_task(f"<button>below</button>{veil}"))
    assert "is covered by" in env.step('click "button \\"below\\""')[0]


@pytest.mark.parametrize(
    "picture",
    [
        "<span class=late style='content: url(/late.png)'></span>",
        "<div class=late style='width: 9px; height: 9px; background: url(/late.png)'></div>",
        "<img src=/late.png alt=late>",
        "<input type=image src=/late.png alt=late>",
    ],
)
def test_a_look_waits_for_pictures(start: Start, picture: str) -> None:
    from PIL import Image

    add = f"document.querySelector('main').innerHTML = {json.dumps(picture + '<p>below</p>')}"
    env = start(hostile_task(f'<button onclick="{html.escape(add)}">add</button>'))
    act(env, "click", target='button "add"')
    assert [(e.id, e.name) for e in env.view.elements] == [(2, "late"), (3, "below")]
    colours = Image.open(BytesIO(env.screenshot())).convert("RGB").getcolors(1 << 20)
    assert colours is not None and (90, 90, 90) in [colour for _, colour in colours]


def test_time_in_a_page_is_the_steps(start: Start) -> None:
    script = "setTimeout(() => { document.title = 'late' }, 4000); document.title = String(Date.now())"
    env = start(hostile_task(f"<script>{script}</script>"))
    first = env.view.title
    env.step("wait 3000")
    assert env.view.title == first == "1717243200000"
    env.step("wait 1000")
    assert env.view.title == "late"


def test_anchor_and_digest(form: WebEnv) -> None:
    before = form.step("scroll 0")[4]
    assert form.step("scroll 300")[4]["anchor"] == before["anchor"]
    assert act(form, "fill", target=2, text="x") and form.view.anchor != before["anchor"]


def test_irreversible_steps_are_marked(start: Start) -> None:
    post = "<form method=post action=/win><button>win</button></form><a href='/next'>look</a>"
    env = start(hostile_task(post, pages={"/next": "<a href='/'>home</a>"}))
    assert not env.step(call("click", target='link "look"'))[4]["irreversible"]
    env.step("back")
    assert env.step(call("click", target='button "win"'))[4]["irreversible"]
    assert env.score().value == 1.0


def test_screenshots_and_marks(form: WebEnv) -> None:
    from PIL import Image

    plain, marks = form.screenshot(), form.screenshot(marks=True)
    assert Image.open(BytesIO(plain)).size == Image.open(BytesIO(marks)).size == (1024, 768)
    assert hashlib.sha256(plain).digest() == hashlib.sha256(form.screenshot()).digest() and plain != marks


@pytest.mark.parametrize("images", ["plain", "marked"])
def test_images_with_every_step(form: WebEnv, images: Literal["plain", "marked"]) -> None:
    env = WebEnv(images=images)
    with closing(env):
        _, info = env.reset(options={"task": form.task})
        again = env.step("wait 10")[4]
        assert info["image"][:4] == b"\x89PNG" and info["image"] == again["image"]


def test_fields_and_text_forms_are_parsed() -> None:
    assert parse_target("[12]") == 12 and parse_target("3.5, 4") == (3.5, 4.0)
    assert parse_target('link "a \\"b\\"" #2') == ["link", 'a "b"', 2]
    assert parse_text('thinking...\nfill 3 "a lamp"', WebEnv.toolbox) == (
        "fill",
        {"target": "3", "text": "a lamp"},
    )
    with pytest.raises(ToolError, match="takes at most 1 arguments"):
        parse_text("goto a b", WebEnv.toolbox)


def test_a_task_that_names_no_target_is_refused() -> None:
    task = Task(id="x", family="web", env="palestra/Web-v0", split="test", instruction="x", data={"other": 1})
    with pytest.raises(EnvSetupError, match="names no miniwob, site, app or webarena"):
        WebEnv().reset(options={"task": task})


def test_an_application_that_cannot_be_built_is_refused() -> None:
    data = {"app": {"builder": "hostile_site:nothing"}}
    task = Task(id="x", family="web", env="palestra/Web-v0", split="test", instruction="x", data=data)
    with pytest.raises(EnvSetupError, match="cannot be made"):
        WebEnv().reset(options={"task": task})


def test_a_wsgi_application_is_a_world(start: Start) -> None:
    task = hostile_task().model_copy(
        update={"data": {"app": {"builder": "tests_wsgi:build"}, "gold": []}, "instruction": "Say hello."}
    )
    env = start(task)
    act(env, "fill", target='textbox "word"', text="hello")
    act(env, "click", target='button "Say"')
    assert env.step(json.dumps({"name": "submit", "arguments": {"answer": ""}}))[1] == 1.0
