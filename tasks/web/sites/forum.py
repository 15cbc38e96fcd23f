"""Tasks on the forum: boards, threads and posts, one's own profile, and what a moderator may do."""

from __future__ import annotations

import random
import sqlite3

from palestra.tasks.web.actions import act, choose, click, done, fill, named
from palestra.tasks.web.sites.build import Goal, Kind, image, one, rows, text

SCHEMA = """
CREATE TABLE person (name TEXT PRIMARY KEY, about TEXT, email TEXT, notify INTEGER, moderator INTEGER);
CREATE TABLE board (id INTEGER PRIMARY KEY, name TEXT UNIQUE);
CREATE TABLE thread (id INTEGER PRIMARY KEY, board_id INTEGER, title TEXT UNIQUE, author TEXT, pinned INTEGER,
                     locked INTEGER);
CREATE TABLE post (id INTEGER PRIMARY KEY, thread_id INTEGER, author TEXT, body TEXT);
CREATE TABLE vote (post_id INTEGER, person TEXT, PRIMARY KEY (post_id, person));
CREATE TABLE follow (thread_id INTEGER, person TEXT, PRIMARY KEY (thread_id, person));
CREATE TABLE report (post_id INTEGER, person TEXT, reason TEXT);
"""
PEOPLE = ("robin", "ada", "bodil", "cem", "dario", "elif", "fenn")
BOARDS = ("Bicycles", "Cooking", "Gardening", "Music")
TITLES = (
    "How do you keep {} clean?", "Looking for a good {}", "My first {}", "Is a {} worth it?", "Selling a {}",
    "What to do about a broken {}",
)  # fmt: skip
OBJECTS = [
    "chain",
    "saddle",
    "pan",
    "knife",
    "hedge",
    "pond",
    "guitar",
    "drum",
    "pump",
    "oven",
    "fern",
    "flute",
]
BODIES = (
    "I would ask around first.", "Same here, it took me a year.", "Have a look at the manual.",
    "Do not buy a cheap one.", "That worked for me, thank you.", "It depends on the weather.",
    "Mine came from my uncle.",
)  # fmt: skip
REASONS = ("spam", "insult", "off topic")


def build(seed: int) -> bytes:
    """The forum of one seed."""
    rng = random.Random(f"forum/{seed}")
    people = [(p, f"I am {p}.", f"{p}@mail.test", 1, int(p == "ada")) for p in PEOPLE]
    boards = list(enumerate(BOARDS, 1))
    titles = rng.sample([t.format(o) for t in TITLES for o in OBJECTS], 12)
    threads = [(i, i % 4 + 1, title, rng.choice(PEOPLE[1:]), 0, 0) for i, title in enumerate(titles, 1)]
    posts: list[tuple[int, int, str, str]] = []
    for thread in threads:
        authors = ["robin", *rng.sample(PEOPLE[1:], 3)] if thread[0] % 3 == 0 else rng.sample(PEOPLE[1:], 4)
        bodies = rng.sample(BODIES, 4)
        for author, body in zip(authors, bodies, strict=True):
            posts.append((len(posts) + 1, thread[0], author, body))
    votes = [(rng.randint(1, len(posts)), p) for p in PEOPLE[1:]]
    return image(SCHEMA, {"person": people, "board": boards, "thread": threads, "post": posts, "vote": votes})


def _threads(db: sqlite3.Connection, rng: random.Random, own: bool = False) -> list[tuple[int, str, str]]:
    """(id, title, board) of all threads in random order; `own`: where robin has written."""
    found = rows(db, "SELECT thread.id, title, board.name FROM thread JOIN board ON board.id = board_id")
    mine = set(rows(db, "SELECT thread_id FROM post WHERE author = 'robin'"))
    return rng.sample([t for t in found if not own or t[0] in mine], 4 if own else 12)


def _open(title: str, board: str) -> list[str]:
    return [click("link", board), click("link", title)]


def new_thread(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """A title and a first post on a board."""
    board, other = rng.sample(BOARDS, 2)
    title, body = (
        f"Where to buy a {rng.choice(OBJECTS)} in {rng.choice(('May', 'June', 'July'))}?",
        rng.choice(BODIES),
    )
    thread, post = one(db, "SELECT max(id) + 1 FROM thread"), one(db, "SELECT max(id) + 1 FROM post")
    number = one(db, "SELECT id FROM board WHERE name = ?", board)

    def start(where: str, called: str) -> list[str]:
        fields = [fill("Title", called), fill("Text", body), click("button", "Post"), done()]
        return [click("link", where), click("link", "New thread"), *fields]

    return Goal(
        f'Start a thread on the board {board} with the title "{title}" and the text "{body}".',
        start(board, title),
        [
            f"INSERT INTO thread VALUES ({thread}, {number}, {text(title)}, 'robin', 0, 0)",
            f"INSERT INTO post VALUES ({post}, {thread}, 'robin', {text(body)})",
        ],
        near_misses={"other board": start(other, title), "other title": start(board, title[:-1])},
    )


def reply(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """A post in a thread."""
    (a, title, board), (_, other, its), *_ = _threads(db, rng)
    body, post = rng.choice(BODIES), one(db, "SELECT max(id) + 1 FROM post")

    def write(what: str, where: str, said: str) -> list[str]:
        return [*_open(what, where), fill("Reply", said), click("button", "Send"), done()]

    return Goal(
        f'Reply to the thread "{title}" on the board {board} with "{body}".',
        write(title, board, body),
        [f"INSERT INTO post VALUES ({post}, {a}, 'robin', {text(body)})"],
        near_misses={
            "other thread": write(other, its, body),
            "other text": write(title, board, body.upper()),
        },
    )


def upvote(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """The post of one person in a thread."""
    (a, title, board), *_ = _threads(db, rng)
    posts = rows(db, "SELECT id, author FROM post WHERE thread_id = ? AND author != 'robin' ORDER BY id", a)
    (post, author), (_, other) = rng.sample(posts, 2)

    def vote(whose: str) -> list[str]:
        return [*_open(title, board), click("button", f"Upvote {whose}")]

    return Goal(
        f'Upvote the post of {author} in the thread "{title}" on the board {board}.',
        [*vote(author), done()],
        [f"INSERT INTO vote VALUES ({post}, 'robin')"],
        near_misses={"other post": [*vote(other), done()], "both": [*vote(author), *vote(other)[2:], done()]},
    )


def edit(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """One's own post."""
    (a, title, board), (_, other, its), *_ = _threads(db, rng, own=True)
    body = f"Edited: {rng.choice(BODIES)}"

    def change(what: str, where: str) -> list[str]:
        return [
            *_open(what, where),
            click("link", "Edit"),
            fill("Text", body),
            click("button", "Save"),
            done(),
        ]

    return Goal(
        f'Change the text of your own post in the thread "{title}" on the board {board} to "{body}".',
        change(title, board),
        [f"UPDATE post SET body = {text(body)} WHERE thread_id = {a} AND author = 'robin'"],
        near_misses={"other thread": change(other, its), "not saved": [*change(title, board)[:-2], done()]},
    )


def delete(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """One's own post, which asks for confirmation."""
    (a, title, board), (_, other, its), *_ = _threads(db, rng, own=True)

    def remove(what: str, where: str) -> list[str]:
        return [*_open(what, where), click("button", "Delete"), done()]

    return Goal(
        f'Delete your own post in the thread "{title}" on the board {board}.',
        remove(title, board),
        [f"DELETE FROM post WHERE thread_id = {a} AND author = 'robin'"],
        near_misses={"other thread": remove(other, its)},
    )


def profile(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """What others read about oneself."""
    about = f"I live in {rng.choice(('Lund', 'Ghent', 'Turin'))} and own a {rng.choice(OBJECTS)}."
    gold = [click("link", "Profile"), fill("About", about), click("button", "Save"), done()]
    return Goal(
        f'Change the text about yourself in your profile to "{about}".',
        gold,
        [f"UPDATE person SET about = {text(about)} WHERE name = 'robin'"],
        near_misses={
            "not saved": [*gold[:2], done()],
            "mail too": [*gold[:2], fill("Mail", "x@mail.test"), *gold[2:]],
        },
    )


def silence(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """Notifications off, and a new address."""
    mail = f"robin{rng.randint(10, 99)}@mail.test"
    off = click("checkbox", "Send me notifications")
    change = fill("Mail", mail)
    save = [click("button", "Save"), done()]
    return Goal(
        f"In your profile, turn the notifications off and change the mail address to {mail}.",
        [click("link", "Profile"), off, change, *save],
        [f"UPDATE person SET notify = 0, email = '{mail}' WHERE name = 'robin'"],
        near_misses={
            "mail only": [click("link", "Profile"), change, *save],
            "notifications only": [click("link", "Profile"), off, *save],
        },
    )


def follow(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """Every thread of a board."""
    board = rng.choice(BOARDS)
    titles = rows(
        db,
        "SELECT title FROM thread JOIN board ON board.id = board_id WHERE name = ? ORDER BY thread.id",
        board,
    )

    def each(names: list[str]) -> list[str]:
        return [a for t in names for a in (*_open(t, board), click("button", "Follow"))]

    return Goal(
        f"Follow every thread on the board {board}.",
        [*each(titles), done()],
        [f"INSERT INTO follow SELECT id, 'robin' FROM thread WHERE board_id = "
         f"(SELECT id FROM board WHERE name = {text(board)})"],
        near_misses={"one left": [*each(titles[1:]), done()]},
    )  # fmt: skip


def report(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """A post, with a reason."""
    (a, title, board), *_ = _threads(db, rng)
    posts = rows(db, "SELECT id, author FROM post WHERE thread_id = ? AND author != 'robin' ORDER BY id", a)
    (post, author), (_, other) = rng.sample(posts, 2)
    reason, wrong = rng.sample(REASONS, 2)

    def tell(whose: str, why: str) -> list[str]:
        fields = [choose("Reason", why), click("button", "Send report"), done()]
        return [*_open(title, board), click("link", f"Report {whose}"), *fields]

    return Goal(
        f'Report the post of {author} in the thread "{title}" on the board {board} as {reason}.',
        tell(author, reason),
        [f"INSERT INTO report VALUES ({post}, 'robin', {text(reason)})"],
        near_misses={"other reason": tell(author, wrong), "other post": tell(other, reason)},
    )


def lock(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """A moderator closes a thread."""
    return _moderate(db, rng, "Lock", "locked")


def pin(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """A moderator pins a thread."""
    return _moderate(db, rng, "Pin", "pinned")


def _moderate(db: sqlite3.Connection, rng: random.Random, button: str, column: str) -> Goal:
    (a, title, board), (_, other, its), *_ = _threads(db, rng)
    wrong = "Pin" if button == "Lock" else "Lock"

    def do(what: str, where: str, how: str) -> list[str]:
        return [*_open(what, where), click("button", how), done()]

    return Goal(
        f'{button} the thread "{title}" on the board {board}. You are a moderator.',
        do(title, board, button),
        [f"UPDATE thread SET {column} = 1 WHERE id = {a}"],
        near_misses={"other thread": do(other, its, button), wrong.lower(): do(title, board, wrong)},
        user="ada",
    )


def who_started(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """A question about a thread."""
    (a, title, board), *_ = _threads(db, rng)
    author = one(db, "SELECT author FROM thread WHERE id = ?", a)
    wrong = next(p for p in PEOPLE[1:] if p != author)
    return Goal(
        f'Who started the thread "{title}" on the board {board}?',
        [*_open(title, board), done(author)],
        answer=author,
        near_misses={"somebody else": [*_open(title, board), done(wrong)]},
    )


def posts_of(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """A question that takes a search."""
    person = rng.choice(PEOPLE[1:])
    n = one(db, "SELECT count(*) FROM post WHERE author = ?", person)
    look = [
        fill("Posts of", person, "searchbox"),
        act("press", key="Enter", target=named("searchbox", "Posts of")),
    ]
    return Goal(
        f"How many posts has {person} written on the forum?",
        [*look, done(str(n))],
        answer=str(n),
        near_misses={"one less": [*look, done(str(n - 1))]},
    )


KINDS: dict[str, Kind] = {
    kind.__name__.replace("_", "-"): kind
    for kind in (
        new_thread, reply, upvote, edit, delete, profile, silence, follow, report, lock, pin, who_started, posts_of,
    )
}  # fmt: skip
