"""The forum: boards, threads, posts, votes, reports, a profile, and two buttons for moderators."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from palestra.envs.web.apps.base import Row, Site, WrongInput, choice, field, go
from palestra.tasks.web.sites.forum import REASONS


class Forum(Site):
    """See the module; the schema is in `palestra.tasks.web.sites.forum`."""

    name = "forum"

    def routes(self) -> Sequence[Route]:
        """See `Site`."""
        return [
            Route("/", self.home),
            Route("/board/{id:int}", self.board),
            Route("/board/{id:int}/new", self.new),
            Route("/board/{id:int}/new", self.start, methods=["POST"]),
            Route("/thread/{id:int}", self.thread),
            Route("/thread/{id:int}/reply", self.reply, methods=["POST"]),
            Route("/thread/{id:int}/follow", self.follow, methods=["POST"]),
            Route("/thread/{id:int}/{flag}", self.moderate, methods=["POST"]),
            Route("/post/{id:int}/vote", self.vote, methods=["POST"]),
            Route("/post/{id:int}/edit", self.edit),
            Route("/post/{id:int}/edit", self.save, methods=["POST"]),
            Route("/post/{id:int}/delete", self.delete, methods=["POST"]),
            Route("/post/{id:int}/report", self.report),
            Route("/post/{id:int}/report", self.send_report, methods=["POST"]),
            Route("/search", self.search),
            Route("/profile", self.profile),
            Route("/profile", self.save_profile, methods=["POST"]),
        ]

    async def home(self, request: Request) -> Response:
        """The boards."""
        return self.page("home", boards=self.rows("SELECT * FROM board ORDER BY id"))

    async def board(self, request: Request) -> Response:
        """The threads of a board."""
        board = self.row("SELECT * FROM board WHERE id = ?", request.path_params["id"])
        threads = self.rows("SELECT * FROM thread WHERE board_id = ? ORDER BY pinned DESC, id", board["id"])
        return self.page("board", board=board, threads=threads)

    async def new(self, request: Request) -> Response:
        """A form for a thread."""
        return self.page("new", board=self.row("SELECT * FROM board WHERE id = ?", request.path_params["id"]))

    async def start(self, request: Request) -> Response:
        """Start a thread."""
        form = await request.form()
        title, body = field(form, "title"), field(form, "text")
        board = self.row("SELECT * FROM board WHERE id = ?", request.path_params["id"])
        self.run("INSERT INTO thread (board_id, title, author, pinned, locked) VALUES (?, ?, ?, 0, 0)",
                 board["id"], title, self.user)  # fmt: skip
        number = self.row("SELECT id FROM thread WHERE title = ?", title)["id"]
        self.run("INSERT INTO post (thread_id, author, body) VALUES (?, ?, ?)", number, self.user, body)
        return go(f"/thread/{number}")

    async def thread(self, request: Request) -> Response:
        """A thread with its posts."""
        thread = self._thread(request)
        posts = self.rows(
            "SELECT post.*, (SELECT count(*) FROM vote WHERE post_id = post.id) AS votes FROM post"
            " WHERE thread_id = ? ORDER BY id",
            thread["id"],
        )
        followed = bool(
            self.rows("SELECT 1 FROM follow WHERE thread_id = ? AND person = ?", thread["id"], self.user)
        )
        return self.page("thread", thread=thread, posts=posts, followed=followed, moderator=self._moderator)

    async def reply(self, request: Request) -> Response:
        """Write a post."""
        thread = self._thread(request)
        if thread["locked"]:
            raise WrongInput("This thread is locked.")
        body = field(await request.form(), "text")
        self.run("INSERT INTO post (thread_id, author, body) VALUES (?, ?, ?)", thread["id"], self.user, body)
        return go(f"/thread/{thread['id']}")

    async def follow(self, request: Request) -> Response:
        """Be told of new posts."""
        thread = self._thread(request)
        self.run("INSERT INTO follow VALUES (?, ?)", thread["id"], self.user)
        return go(f"/thread/{thread['id']}")

    async def moderate(self, request: Request) -> Response:
        """Pin or lock a thread."""
        columns = {"pin": "pinned", "lock": "locked"}
        column = columns.get(request.path_params["flag"])
        if column is None or not self._moderator:
            raise WrongInput("Only moderators may do this.")
        thread = self._thread(request)
        self.run(f"UPDATE thread SET {column} = 1 - {column} WHERE id = ?", thread["id"])
        return go(f"/thread/{thread['id']}")

    async def vote(self, request: Request) -> Response:
        """Find a post good."""
        post = self._post(request)
        self.run("INSERT INTO vote VALUES (?, ?)", post["id"], self.user)
        return go(f"/thread/{post['thread_id']}")

    async def edit(self, request: Request) -> Response:
        """A form for one's own post."""
        return self.page("edit", post=self._own(request))

    async def save(self, request: Request) -> Response:
        """Change one's own post."""
        post = self._own(request)
        self.run("UPDATE post SET body = ? WHERE id = ?", field(await request.form(), "text"), post["id"])
        return go(f"/thread/{post['thread_id']}")

    async def delete(self, request: Request) -> Response:
        """Remove one's own post."""
        post = self._own(request)
        self.run("DELETE FROM post WHERE id = ?", post["id"])
        return go(f"/thread/{post['thread_id']}")

    async def report(self, request: Request) -> Response:
        """A form to report a post."""
        return self.page("report", post=self._post(request), reasons=REASONS)

    async def send_report(self, request: Request) -> Response:
        """Report a post."""
        post, reason = self._post(request), choice(await request.form(), "reason", REASONS)
        self.run("INSERT INTO report VALUES (?, ?, ?)", post["id"], self.user, reason)
        return go(f"/thread/{post['thread_id']}")

    async def search(self, request: Request) -> Response:
        """Every post of one person."""
        person = request.query_params.get("author", "").strip()
        posts = self.rows(
            "SELECT post.*, title FROM post JOIN thread ON thread.id = thread_id WHERE post.author = ?"
            " ORDER BY post.id",
            person,
        )
        return self.page("search", person=person, posts=posts)

    async def profile(self, request: Request) -> Response:
        """What one has said about oneself."""
        return self.page("profile", person=self.row("SELECT * FROM person WHERE name = ?", self.user))

    async def save_profile(self, request: Request) -> Response:
        """Change it."""
        form = await request.form()
        self.run(
            "UPDATE person SET about = ?, email = ?, notify = ? WHERE name = ?",
            field(form, "about"), field(form, "email"), int("notify" in form), self.user,
        )  # fmt: skip
        return go("/profile")

    @property
    def _moderator(self) -> bool:
        return bool(self.row("SELECT moderator FROM person WHERE name = ?", self.user)["moderator"])

    def _thread(self, request: Request) -> Row:
        sql = "SELECT thread.*, board.name AS board FROM thread JOIN board ON board.id = board_id WHERE thread.id = ?"
        return self.row(sql, request.path_params["id"])

    def _post(self, request: Request) -> Row:
        return self.row("SELECT * FROM post WHERE id = ?", request.path_params["id"])

    def _own(self, request: Request) -> Row:
        post = self._post(request)
        if post["author"] != self.user:
            raise WrongInput("This is not your post.")
        return post
