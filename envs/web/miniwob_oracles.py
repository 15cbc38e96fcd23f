"""Scripted solutions of MiniWoB++ pages, from what an agent sees: the goal and the page. For checking, not for score.

Each oracle is a generator: it yields an action and is sent the page that came of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence

from palestra.envs.web.observation import Element, View
from palestra.tasks.web.actions import act

Script = Generator[str, View, None]
Oracle = Callable[[str, View], Script]

ORACLES: dict[str, Oracle] = {}


def solves(*pages: str) -> Callable[[Oracle], Oracle]:
    """Register an oracle for some pages."""

    def register(oracle: Oracle) -> Oracle:
        ORACLES.update(dict.fromkeys(pages, oracle))
        return oracle

    return register


def click(element: Element) -> str:
    """Click it."""
    return act("click", target=element.id)


def fill(element: Element, text: str) -> str:
    """Fill it in."""
    return act("fill", target=element.id, text=text)


def of(view: View, *roles: str) -> list[Element]:
    """The elements of some roles."""
    return [e for e in view.elements if e.role in roles and e.id]


def called(view: View, name: str, *roles: str) -> Element:
    """The first element with this name, whatever its case. Raises LookupError."""
    for element in view.elements:
        if element.id and element.name.lower() == name.lower() and (not roles or element.role in roles):
            return element
    raise LookupError(f"there is no {name!r} on the page")


def said(goal: str) -> list[str]:
    """What a goal has in quotes."""
    return re.findall(r'"([^"]*)"', goal)


def ordinal(goal: str) -> int:
    """The first "2nd" in a goal, from 0."""
    found = re.search(r"(\d+)(?:st|nd|rd|th)", goal)
    return int(found[1]) - 1 if found else 0


def submit(view: View) -> str:
    """Click the button that ends it."""
    return click(next(e for e in view.elements if e.id and e.name in ("Submit", "Login", "Search", "Go!")))


@solves("click-test")
def only_button(goal: str, view: View) -> Script:
    yield click(of(view, "button")[0])


@solves("click-test-2", "click-test-transfer", "click-button-sequence")
def buttons_one_two(goal: str, view: View) -> Script:
    for word in re.findall(r"\b(ONE|TWO)\b", goal):
        view = yield click(called(view, word, "button"))


@solves("click-button", "unicode-test", "click-link", "click-dialog-2", "focus-text")
def quoted(goal: str, view: View) -> Script:
    if not said(goal):
        yield click(of(view, "textbox")[0])
    elif said(goal)[0] == "x":
        yield click(called(view, "Close", "button"))
    else:
        name = said(goal)[0]
        yield click(
            next(e for e in view.elements if e.id and e.name == name and e.role in ("button", "text", "link"))
        )


@solves("click-dialog")
def close(goal: str, view: View) -> Script:
    yield click(called(view, "Close"))


@solves("focus-text-2")
def nth_box(goal: str, view: View) -> Script:
    yield click(of(view, "textbox")[ordinal(goal)])


@solves("click-tab")
def tab(goal: str, view: View) -> Script:
    yield click(called(view, goal.split("on ")[1].rstrip("."), "link"))


@solves("click-tab-2", "click-tab-2-easy", "click-tab-2-medium", "click-tab-2-hard")
def tab_with_link(goal: str, view: View) -> Script:
    wanted = said(goal)[0]
    for name in [e.name for e in of(view, "link") if re.fullmatch(r"(Tab #)?\d", e.name)]:
        view = yield click(called(view, name, "link"))
        found = [
            e
            for e in view.elements
            if e.id and e.name.rstrip(".,") == wanted.rstrip(".,") and e.role == "text"
        ]
        if found:
            yield click(found[0])
            return


@solves("click-checkboxes", "click-checkboxes-large", "click-checkboxes-transfer", "click-option")
def boxes(goal: str, view: View) -> Script:
    names = goal.removeprefix("Select ").rpartition(" and click Submit")[0]
    wanted = [] if names == "nothing" else names.split(", ")
    for name in wanted:
        view = yield click(called(view, name, "checkbox", "radio"))
    yield submit(view)


@solves("click-shades")
def shades(goal: str, view: View) -> Script:
    wanted = "color=" + re.findall(r"shades of (\w+)", goal)[0]
    for element in of(view, "box"):
        if wanted in element.states:
            view = yield click(element)
    yield submit(view)


@solves("click-color")
def colour(goal: str, view: View) -> Script:
    wanted = "color=" + re.findall(r"on the (\w+) colored", goal)[0]
    yield click(next(e for e in of(view, "box") if wanted in e.states))


@solves("click-widget")
def widget(goal: str, view: View) -> Script:
    roles = {"text": "textbox", "textarea": "textbox"}
    yield click(of(view, roles.get(said(goal)[0], said(goal)[0]))[0])


@solves("choose-list")
def choose(goal: str, view: View) -> Script:
    wanted = goal.removeprefix("Select ").rpartition(" from the list")[0]
    view = yield act("select", target=of(view, "combobox")[0].id, options=wanted)
    yield submit(view)


@solves("click-scroll-list")
def choose_some(goal: str, view: View) -> Script:
    wanted = goal.removeprefix("Select ").rpartition(" from the scroll list")[0].split(", ")
    view = yield act("select", target=of(view, "listbox")[0].id, options=wanted)
    yield submit(view)


@solves("enter-text", "enter-text-dynamic", "enter-password", "login-user")
def enter(goal: str, view: View) -> Script:
    texts = said(goal) * 2
    for element, text in zip(of(view, "textbox"), texts, strict=False):
        view = yield fill(element, text)
    yield submit(view)


@solves("enter-text-2")
def enter_in_case(goal: str, view: View) -> Script:
    text = said(goal)[0]
    view = yield fill(of(view, "textbox")[0], text.lower() if "lower case" in goal else text.upper())
    yield submit(view)


@solves("enter-date")
def date(goal: str, view: View) -> Script:
    month, day, year = re.findall(r"(\d+)/(\d+)/(\d+)", goal)[0]
    view = yield fill(of(view, "datepicker", "textbox")[0], f"{year}-{month:0>2}-{day:0>2}")
    yield submit(view)


@solves("enter-time")
def time(goal: str, view: View) -> Script:
    hour, minute, half = re.findall(r"(\d+):(\d+) (AM|PM)", goal)[0]
    in_day = int(hour) % 12 + (12 if half == "PM" else 0)
    view = yield fill(of(view, "timepicker")[0], f"{in_day:02d}:{minute}")
    yield submit(view)


@solves("simple-algebra")
def algebra(goal: str, view: View) -> Script:
    left, right = of(view, "text")[0].name.split(" = ")
    known = next(x for x in range(-1000, 1001) if _sum(left.replace("x", f"({x})")) == int(right))
    view = yield fill(of(view, "textbox")[0], str(known))
    yield submit(view)


@solves("simple-arithmetic")
def arithmetic(goal: str, view: View) -> Script:
    view = yield fill(of(view, "textbox")[0], str(_sum(of(view, "text")[0].name.rstrip("= "))))
    yield submit(view)


def _sum(text: str) -> int:
    """The value of "a + b", "a - b" or "a x b"."""
    first, sign, second = re.findall(r"\(?(-?\d+)\)?\s*([-+x*])\s*\(?(-?\d+)\)?", text)[0]
    one, other = int(first), int(second)
    return {"+": one + other, "-": one - other}.get(sign, one * other)


@solves("read-table", "read-table-2")
def table(goal: str, view: View) -> Script:
    cells = [e.name for e in of(view, "cell")]
    values = dict(zip(cells[::2], cells[1::2], strict=True))
    labels = [e.name.rstrip(":") for e in of(view, "label")] or re.findall(r"value of (.+?) into", goal)
    for element, label in zip(of(view, "textbox"), labels, strict=True):
        view = yield fill(element, values[label])
    yield submit(view)


@solves("use-spinner")
def spinner(goal: str, view: View) -> Script:
    view = yield fill(of(view, "spinbutton")[0], re.findall(r"Select (-?\d+)", goal)[0])
    yield submit(view)


@solves("find-word")
def word(goal: str, view: View) -> Script:
    words = re.findall(r"\w+", of(view, "paragraph", "text")[0].name)
    view = yield fill(of(view, "textbox")[0], words[ordinal(goal)])
    yield submit(view)


@solves("form-sequence-2")
def radio_and_text(goal: str, view: View) -> Script:
    which, where = (int(n) - 1 for n in re.findall(r"(\d+)(?:st|nd|rd|th)", goal))
    view = yield click(of(view, "radio")[which])
    view = yield fill(of(view, "textbox")[where], said(goal)[0])
    yield submit(view)


@solves("guess-number")
def guess(goal: str, view: View) -> Script:
    low, high = 0, 9
    while low <= high:
        middle = (low + high) // 2
        view = yield fill(of(view, "spinbutton")[0], str(middle))
        view = yield submit(view)
        text = " ".join(e.name for e in view.elements)
        low, high = (middle + 1, high) if "higher" in text else (low, middle - 1)


@solves("odd-or-even")
def odd_or_even(goal: str, view: View) -> Script:
    numbers = [int(e.name) for e in of(view, "text") if re.fullmatch(r"-?\d+", e.name)]
    odd, even = ([e for e in of(view, "button") if e.name == name] for name in ("Odd", "Even"))
    for at, number in enumerate(numbers):
        view = yield click((odd if number % 2 else even)[at])
    yield submit(view)


@solves("click-collapsible", "click-collapsible-nodelay")
def collapsible(goal: str, view: View) -> Script:
    view = yield click(of(view, "tab")[0])
    yield submit(view)


@solves("copy-paste", "copy-paste-2")
def copy(goal: str, view: View) -> Script:
    fields = of(view, "textbox")
    source = (
        fields[ordinal(goal)] if re.search(r"\d", goal) else max(fields, key=lambda e: len(e.value or ""))
    )
    view = yield fill(next(e for e in fields if not e.value), source.value or "")
    yield submit(view)


@solves("text-transform")
def letters(goal: str, view: View) -> Script:
    text = "".join(e.name for e in view.elements if e.role == "text")
    view = yield fill(of(view, "textbox")[0], text)
    yield submit(view)


@solves("multi-orderings")
def movies(goal: str, view: View) -> Script:
    kind, director, year = re.findall(r"Search for (.+) movies directed by (.+) from year (\d+)", goal)[0]
    values = {"genre": kind, "director": director, "year": year, "date": year}
    label = ""
    for element in view.elements:
        if element.role in ("textbox", "searchbox"):
            view = yield fill(element, next(v for k, v in values.items() if k in label.lower()))
        label = element.name or label
    yield submit(view)


@solves("generate-number")
def generate(goal: str, view: View) -> Script:
    limits = re.findall(r"(less|greater) than (\d+)", goal)
    while True:
        number = view.elements[0].name
        if number.isdigit() and _fits(int(number), goal, limits):
            break
        view = yield click(called(view, "Generate"))
    yield submit(view)


def _fits(number: int, goal: str, limits: Sequence[tuple[str, str]]) -> bool:
    if not limits:
        return number % 2 == ("odd" in goal)
    return all(number < int(limit) if sign == "less" else number > int(limit) for sign, limit in limits)


@solves("visual-addition")
def blocks(goal: str, view: View) -> Script:
    view = yield fill(of(view, "textbox")[0], str(len(of(view, "box"))))
    yield submit(view)


@solves("identify-shape")
def shape(goal: str, view: View) -> Script:
    figure = next(e for e in view.elements if e.states and e.states[-1].startswith("size="))
    names = {"circle": "Circle", "rect": "Rectangle", "polygon": "Triangle"}
    letter = "Number" if figure.name.isdigit() else "Letter"
    yield click(called(view, names.get(figure.role, letter), "button"))


@solves("email-inbox-delete")
def delete(goal: str, view: View) -> Script:
    sender = re.findall(r"email by (\S+)", goal)[0]
    rows = [e for e in view.elements if e.id]
    at = next(i for i, e in enumerate(rows) if e.name == sender)
    yield click(next(e for e in rows[at:] if e.name == "trash"))


@solves("highlight-text", "highlight-text-2")
def highlight(goal: str, view: View) -> Script:
    paragraphs = of(view, "paragraph", "text")
    view = yield act("highlight", target=paragraphs[ordinal(goal)].id)
    yield submit(view)


@solves("grid-coordinate")
def grid(goal: str, view: View) -> Script:
    x, y = map(int, re.findall(r"\((-?\d+),(-?\d+)\)", goal)[0])
    yield act("click", target=f"{79 + 30 * x},{129 - 30 * y}")


@solves("use-autocomplete", "use-autocomplete-nodelay")
def autocomplete(goal: str, view: View) -> Script:
    start, *end = said(goal)
    view = yield act("type", text=start, target=of(view, "textbox")[0].id)
    names = [e.name for e in view.elements if e.role in ("menuitem", "option", "text", "listitem")]
    fitting = [n for n in names if n.startswith(start) and n.endswith(end[0] if end else "")]
    view = yield click(called(view, fitting[0]))
    yield submit(view)
