"""Tasks on the desk of an office building: rooms to book by date and time, and tickets to work on."""

from __future__ import annotations

import random
import sqlite3

from palestra.tasks.web.actions import choose, click, done, fill
from palestra.tasks.web.sites.build import Goal, Kind, image, one, rows, text

SCHEMA = """
CREATE TABLE room (id INTEGER PRIMARY KEY, name TEXT UNIQUE, seats INTEGER, floor INTEGER, projector INTEGER);
CREATE TABLE booking (id INTEGER PRIMARY KEY, room_id INTEGER, day TEXT, slot TEXT, title TEXT, owner TEXT,
                      UNIQUE (room_id, day, slot));
CREATE TABLE ticket (id INTEGER PRIMARY KEY, subject TEXT UNIQUE, category TEXT, priority TEXT, status TEXT,
                     assignee TEXT);
CREATE TABLE comment (id INTEGER PRIMARY KEY, ticket_id INTEGER, author TEXT, body TEXT);
"""
ROOMS = ("Alder", "Birch", "Cedar", "Elm", "Fir", "Hazel")
DAYS = ("2024-06-03", "2024-06-04", "2024-06-05")
SLOTS = ("09:00", "11:00", "13:00", "15:00")
TITLES = [
    "Budget review",
    "Team lunch",
    "Interview",
    "Planning",
    "Training",
    "Retrospective",
    "Demo",
    "Workshop",
]
STAFF = ("robin", "ines", "jonas", "kaya", "liam")
SUBJECTS = (
    "Printer out of toner", "Door does not lock", "Heating is off", "Screen flickers", "No network in the kitchen",
    "Lamp is broken", "Window stays open", "Password forgotten", "Chair squeaks", "Coffee machine leaks",
)  # fmt: skip
CATEGORIES = ("building", "hardware", "software")
PRIORITIES = ("low", "normal", "high")
STATUSES = ("open", "waiting", "closed")
REMARKS = ("I am on it.", "A part is on order.", "Please try again.", "This was fixed yesterday.")


def build(seed: int) -> bytes:
    """The desk of one seed."""
    rng = random.Random(f"desk/{seed}")
    seats = rng.sample((4, 6, 8, 10, 12, 20), len(ROOMS))
    rooms = [
        (i, r, n, rng.randint(1, 4), rng.randint(0, 1))
        for i, (r, n) in enumerate(zip(ROOMS, seats, strict=True), 1)
    ]
    places = rng.sample([(r[0], day, slot) for r in rooms for day in DAYS for slot in SLOTS], 18)
    titles = [f"{t} {chr(65 + i // len(TITLES))}" for i, t in enumerate(TITLES * 3)][:18]
    owners = ["robin"] * 4 + [rng.choice(STAFF[1:]) for _ in range(14)]
    bookings = [(i, *p, t, o) for i, (p, t, o) in enumerate(zip(places, titles, owners, strict=True), 1)]
    tickets = [
        (
            i,
            s,
            rng.choice(CATEGORIES),
            rng.choice(PRIORITIES),
            STATUSES[i % 3] if i < 7 else "open",
            rng.choice(STAFF),
        )
        for i, s in enumerate(rng.sample(SUBJECTS, len(SUBJECTS)), 1)
    ]
    comments = [(i, rng.randint(1, 10), rng.choice(STAFF), rng.choice(REMARKS)) for i in range(1, 9)]
    return image(SCHEMA, {"room": rooms, "booking": bookings, "ticket": tickets, "comment": comments})


def _free(db: sqlite3.Connection, rng: random.Random) -> list[tuple[str, str, str]]:
    """Two free places as (room, day, slot)."""
    taken = set(rows(db, "SELECT name, day, slot FROM booking JOIN room ON room.id = room_id"))
    return rng.sample(
        [p for p in ((r, d, s) for r in ROOMS for d in DAYS for s in SLOTS) if p not in taken], 2
    )


def _book(place: tuple[str, str, str], title: str) -> list[str]:
    room, day, slot = place
    fields = [choose("Day", day), choose("Time", slot), fill("Title", title)]
    return [click("link", "Rooms"), click("link", room), *fields, click("button", "Book")]


def _room(db: sqlite3.Connection, name: str) -> int:
    return int(one(db, "SELECT id FROM room WHERE name = ?", name))


def _insert(db: sqlite3.Connection, place: tuple[str, str, str], title: str) -> str:
    number = one(db, "SELECT max(id) + 1 FROM booking")
    room, day, slot = place
    return (
        f"INSERT INTO booking VALUES ({number}, {_room(db, room)}, '{day}', '{slot}', {text(title)}, 'robin')"
    )


def book(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """A room at a time."""
    place, other = _free(db, rng)
    title = f"{rng.choice(TITLES)} with {rng.choice(STAFF[1:])}"
    return Goal(
        f'Book the room {place[0]} on {place[1]} at {place[2]} with the title "{title}".',
        [*_book(place, title), done()],
        [_insert(db, place, title)],
        near_misses={
            "other place": [*_book(other, title), done()],
            "other title": [*_book(place, title + "!"), done()],
            "not booked": [*_book(place, title)[:-1], done()],
        },
    )


def book_large(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """The smallest room that is large enough and free."""
    sql = (
        "SELECT name, seats FROM room WHERE id NOT IN (SELECT room_id FROM booking WHERE day = ? AND slot = ?)"
        " ORDER BY seats"
    )
    times = [(d, s) for d in DAYS for s in SLOTS if len(rows(db, sql, d, s)) > 1]
    day, slot = rng.choice(times)
    free = rows(db, sql, day, slot)
    at = rng.randrange(len(free) - 1)
    (room, n), (larger, _) = free[at], free[at + 1]
    return Goal(
        f'Book the smallest room with at least {n} seats that is free on {day} at {slot}, with the title "Visit".',
        [*_book((room, day, slot), "Visit"), done()],
        [_insert(db, (room, day, slot), "Visit")],
        near_misses={"a larger room": [*_book((larger, day, slot), "Visit"), done()]},
    )


def _mine(db: sqlite3.Connection, rng: random.Random) -> list[tuple[int, str]]:
    return rng.sample(rows(db, "SELECT id, title FROM booking WHERE owner = 'robin'"), 2)


def call_off(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """One's own booking."""
    (number, title), (_, other) = _mine(db, rng)

    def drop(what: str) -> list[str]:
        return [click("link", "My bookings"), click("button", f"Cancel {what}")]

    return Goal(
        f'Cancel your booking "{title}".',
        [*drop(title), done()],
        [f"DELETE FROM booking WHERE id = {number}"],
        near_misses={"other booking": [*drop(other), done()], "both": [*drop(title), *drop(other), done()]},
    )


def move(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """One's own booking to another time."""
    (number, title), (_, other) = _mine(db, rng)
    room = one(db, "SELECT room_id FROM booking WHERE id = ?", number)
    taken = set(rows(db, "SELECT day, slot FROM booking WHERE room_id = ?", room))
    day, slot = rng.choice([p for p in ((d, s) for d in DAYS for s in SLOTS) if p not in taken])

    def shift(what: str, when: str) -> list[str]:
        fields = [choose("Day", day), choose("Time", when), click("button", "Save"), done()]
        return [click("link", "My bookings"), click("link", f"Change {what}"), *fields]

    return Goal(
        f'Move your booking "{title}" to {day} at {slot}, in the same room.',
        shift(title, slot),
        [f"UPDATE booking SET day = '{day}', slot = '{slot}' WHERE id = {number}"],
        near_misses={"other booking": shift(other, slot), "not saved": [*shift(title, slot)[:-2], done()]},
    )


def rename(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """One's own booking."""
    (number, title), (_, other) = _mine(db, rng)
    new = f"{rng.choice(TITLES)} for {rng.choice(STAFF[1:])}"

    def call_it(what: str, name: str) -> list[str]:
        fields = [fill("Title", name), click("button", "Save"), done()]
        return [click("link", "My bookings"), click("link", f"Change {what}"), *fields]

    return Goal(
        f'Change the title of your booking "{title}" to "{new}".',
        call_it(title, new),
        [f"UPDATE booking SET title = {text(new)} WHERE id = {number}"],
        near_misses={"other booking": call_it(other, new), "other title": call_it(title, new.lower())},
    )


def _tickets(db: sqlite3.Connection, rng: random.Random) -> list[tuple[int, str, str, str, str]]:
    found = rows(db, "SELECT id, subject, priority, status, assignee FROM ticket WHERE status = 'open'")
    return rng.sample(found, 2)


def _work(subject: str, *changes: str) -> list[str]:
    return [click("link", "Tickets"), click("link", subject), *changes, click("button", "Save"), done()]


def close(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """A ticket that is done."""
    (a, subject, *_), (_, other, *_) = _tickets(db, rng)
    shut = choose("Status", "closed")
    return Goal(
        f'Close the ticket "{subject}".',
        _work(subject, shut),
        [f"UPDATE ticket SET status = 'closed' WHERE id = {a}"],
        near_misses={
            "other ticket": _work(other, shut),
            "waiting": _work(subject, choose("Status", "waiting")),
        },
    )


def assign(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """A ticket to somebody else, with another priority."""
    (a, subject, priority, _, who), (_, other, *_) = _tickets(db, rng)
    new = rng.choice([p for p in STAFF if p != who])
    urgent = rng.choice([p for p in PRIORITIES if p != priority])
    both = choose("Assignee", new), choose("Priority", urgent)
    return Goal(
        f'Assign the ticket "{subject}" to {new} and set its priority to {urgent}.',
        _work(subject, *both),
        [f"UPDATE ticket SET assignee = '{new}', priority = '{urgent}' WHERE id = {a}"],
        near_misses={"assignee only": _work(subject, both[0]), "other ticket": _work(other, *both)},
    )


def comment(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """A remark on a ticket."""
    (a, subject, *_), (_, other, *_) = _tickets(db, rng)
    body, number = rng.choice(REMARKS), one(db, "SELECT max(id) + 1 FROM comment")

    def say(what: str, said: str) -> list[str]:
        fields = [fill("Comment", said), click("button", "Add comment"), done()]
        return [click("link", "Tickets"), click("link", what), *fields]

    return Goal(
        f'Comment on the ticket "{subject}" with "{body}".',
        say(subject, body),
        [f"INSERT INTO comment VALUES ({number}, {a}, 'robin', {text(body)})"],
        near_misses={"other ticket": say(other, body), "other text": say(subject, body * 2)},
    )


def open_ticket(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """A new ticket."""
    subject = f"{rng.choice(('Noise', 'Smell', 'Water'))} in room {rng.choice(ROOMS)}"
    category, priority = rng.choice(CATEGORIES), rng.choice(("low", "high"))
    number = one(db, "SELECT max(id) + 1 FROM ticket")

    def write(kind: str, urgency: str) -> list[str]:
        fields = [fill("Subject", subject), choose("Category", kind), choose("Priority", urgency)]
        return [
            click("link", "Tickets"),
            click("link", "New ticket"),
            *fields,
            click("button", "Create"),
            done(),
        ]

    other = next(c for c in CATEGORIES if c != category)
    return Goal(
        f'Create a ticket "{subject}" in the category {category} with {priority} priority.',
        write(category, priority),
        [
            f"INSERT INTO ticket VALUES ({number}, {text(subject)}, '{category}', '{priority}', 'open', 'robin')"
        ],
        near_misses={"other category": write(other, priority), "normal priority": write(category, "normal")},
    )


def close_all(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """Every open ticket of one person."""
    people = rows(
        db, "SELECT assignee FROM ticket WHERE status = 'open' GROUP BY assignee ORDER BY count(*), 1"
    )
    person = people[-1]
    subjects = rows(
        db, "SELECT subject FROM ticket WHERE status = 'open' AND assignee = ? ORDER BY id", person
    )

    def each(names: list[str]) -> list[str]:
        return [a for s in names for a in _work(s, choose("Status", "closed"))[:-1]]

    return Goal(
        f"Close every open ticket that is assigned to {person}.",
        [*each(subjects), done()],
        [f"UPDATE ticket SET status = 'closed' WHERE status = 'open' AND assignee = '{person}'"],
        near_misses={"one left": [*each(subjects[1:]), done()]},
    )


def how_many_open(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """A question about tickets."""
    priority = rng.choice(PRIORITIES)
    n = one(db, "SELECT count(*) FROM ticket WHERE status = 'open' AND priority = ?", priority)
    look = [click("link", "Tickets")]
    return Goal(
        f"How many open tickets have {priority} priority?",
        [*look, done(str(n))],
        answer=str(n),
        near_misses={"one more": [*look, done(str(n + 1))]},
    )


def who_has(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """A question about a room."""
    room, day, slot, owner = rng.choice(
        rows(
            db,
            "SELECT name, day, slot, owner FROM booking JOIN room ON room.id = room_id ORDER BY booking.id",
        )
    )
    look = [click("link", "Rooms"), click("link", room)]
    wrong = next(p for p in STAFF if p != owner)
    return Goal(
        f"Who has booked the room {room} on {day} at {slot}?",
        [*look, done(owner)],
        answer=owner,
        near_misses={"somebody else": [*look, done(wrong)]},
    )


KINDS: dict[str, Kind] = {
    kind.__name__.replace("_", "-"): kind
    for kind in (
        book, book_large, call_off, move, rename, close, assign, comment, open_ticket, close_all, how_many_open,
        who_has,
    )
}  # fmt: skip
