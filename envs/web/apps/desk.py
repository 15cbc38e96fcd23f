"""The desk: rooms with their calendars, one's own bookings, and tickets with comments."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from palestra.envs.web.apps.base import Row, Site, WrongInput, choice, field, go
from palestra.tasks.web.sites.desk import CATEGORIES, DAYS, PRIORITIES, SLOTS, STAFF, STATUSES


class Desk(Site):
    """See the module; the schema is in `palestra.tasks.web.sites.desk`."""

    name = "desk"

    def routes(self) -> Sequence[Route]:
        """See `Site`."""
        return [
            Route("/", self.home),
            Route("/rooms", self.rooms),
            Route("/rooms/{id:int}", self.room),
            Route("/rooms/{id:int}", self.book, methods=["POST"]),
            Route("/bookings", self.bookings),
            Route("/bookings/{id:int}", self.booking),
            Route("/bookings/{id:int}", self.change, methods=["POST"]),
            Route("/bookings/{id:int}/cancel", self.cancel, methods=["POST"]),
            Route("/tickets", self.tickets),
            Route("/tickets/new", self.new),
            Route("/tickets/new", self.create, methods=["POST"]),
            Route("/tickets/{id:int}", self.ticket),
            Route("/tickets/{id:int}", self.work, methods=["POST"]),
            Route("/tickets/{id:int}/comment", self.comment, methods=["POST"]),
        ]

    async def home(self, request: Request) -> Response:
        """The way in."""
        return self.page("home")

    async def rooms(self, request: Request) -> Response:
        """All rooms."""
        return self.page("rooms", rooms=self.rows("SELECT * FROM room ORDER BY name"))

    async def room(self, request: Request) -> Response:
        """A room, its calendar and a form to book it."""
        room = self.row("SELECT * FROM room WHERE id = ?", request.path_params["id"])
        taken = self.rows("SELECT * FROM booking WHERE room_id = ? ORDER BY day, slot", room["id"])
        return self.page("room", room=room, taken=taken, days=DAYS, slots=SLOTS)

    async def book(self, request: Request) -> Response:
        """Book a room."""
        room, form = (
            self.row("SELECT * FROM room WHERE id = ?", request.path_params["id"]),
            await request.form(),
        )
        when = choice(form, "day", DAYS), choice(form, "slot", SLOTS)
        self.run("INSERT INTO booking (room_id, day, slot, title, owner) VALUES (?, ?, ?, ?, ?)",
                 room["id"], *when, field(form, "title"), self.user)  # fmt: skip
        return go("/bookings")

    async def bookings(self, request: Request) -> Response:
        """One's own bookings."""
        own = self.rows(
            "SELECT booking.*, name FROM booking JOIN room ON room.id = room_id WHERE owner = ? ORDER BY day, slot",
            self.user,
        )
        return self.page("bookings", bookings=own)

    async def booking(self, request: Request) -> Response:
        """A form to change a booking."""
        return self.page("booking", booking=self._own(request), days=DAYS, slots=SLOTS)

    async def change(self, request: Request) -> Response:
        """Change a booking."""
        booking, form = self._own(request), await request.form()
        self.run("UPDATE booking SET day = ?, slot = ?, title = ? WHERE id = ?", choice(form, "day", DAYS),
                 choice(form, "slot", SLOTS), field(form, "title"), booking["id"])  # fmt: skip
        return go("/bookings")

    async def cancel(self, request: Request) -> Response:
        """Give a room back."""
        self.run("DELETE FROM booking WHERE id = ?", self._own(request)["id"])
        return go("/bookings")

    async def tickets(self, request: Request) -> Response:
        """All tickets."""
        return self.page("tickets", tickets=self.rows("SELECT * FROM ticket ORDER BY id"))

    async def new(self, request: Request) -> Response:
        """A form for a ticket."""
        return self.page("new", categories=CATEGORIES, priorities=PRIORITIES)

    async def create(self, request: Request) -> Response:
        """Open a ticket."""
        form = await request.form()
        self.run(
            "INSERT INTO ticket (subject, category, priority, status, assignee) VALUES (?, ?, ?, 'open', ?)",
            field(form, "subject"), choice(form, "category", CATEGORIES), choice(form, "priority", PRIORITIES),
            self.user,
        )  # fmt: skip
        return go("/tickets")

    async def ticket(self, request: Request) -> Response:
        """A ticket with its comments."""
        ticket = self._ticket(request)
        comments = self.rows("SELECT * FROM comment WHERE ticket_id = ? ORDER BY id", ticket["id"])
        return self.page("ticket", ticket=ticket, comments=comments, statuses=STATUSES, priorities=PRIORITIES,
                         staff=STAFF)  # fmt: skip

    async def work(self, request: Request) -> Response:
        """Change a ticket."""
        form = await request.form()
        self.run("UPDATE ticket SET status = ?, priority = ?, assignee = ? WHERE id = ?",
                 choice(form, "status", STATUSES), choice(form, "priority", PRIORITIES),
                 choice(form, "assignee", STAFF), self._ticket(request)["id"])  # fmt: skip
        return go("/tickets")

    async def comment(self, request: Request) -> Response:
        """Comment on a ticket."""
        ticket, body = self._ticket(request), field(await request.form(), "text")
        self.run(
            "INSERT INTO comment (ticket_id, author, body) VALUES (?, ?, ?)", ticket["id"], self.user, body
        )
        return go(f"/tickets/{ticket['id']}")

    def _own(self, request: Request) -> Row:
        booking = self.row("SELECT * FROM booking WHERE id = ?", request.path_params["id"])
        if booking["owner"] != self.user:
            raise WrongInput("This is not your booking.")
        return booking

    def _ticket(self, request: Request) -> Row:
        return self.row("SELECT * FROM ticket WHERE id = ?", request.path_params["id"])
