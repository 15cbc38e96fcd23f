"""The shop: search, categories, products with reviews, a cart, a wish list, check-out, and an office."""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from palestra.envs.web.apps.base import Site, WrongInput, choice, field, go, whole
from palestra.tasks.web.sites.shop import STATUSES, THINGS

SHIPPING = ("standard", "express")


class Shop(Site):
    """See the module; the schema is in `palestra.tasks.web.sites.shop`."""

    name = "shop"

    def routes(self) -> Sequence[Route]:
        """See `Site`."""
        return [
            Route("/", self.home),
            Route("/category/{name}", self.category),
            Route("/product/{id:int}", self.product),
            Route("/product/{id:int}/cart", self.add, methods=["POST"]),
            Route("/product/{id:int}/wish", self.wish, methods=["POST"]),
            Route("/product/{id:int}/review", self.review, methods=["POST"]),
            Route("/wishes", self.wishes),
            Route("/cart", self.cart),
            Route("/cart/{id:int}", self.change_cart, methods=["POST"]),
            Route("/checkout", self.checkout),
            Route("/checkout", self.place, methods=["POST"]),
            Route("/office", self.office),
            Route("/office/products", self.products),
            Route("/office/products/{id:int}", self.edit),
            Route("/office/products/{id:int}", self.save, methods=["POST"]),
            Route("/office/orders", self.orders),
            Route("/office/orders/{id:int}", self.order),
            Route("/office/orders/{id:int}", self.set_status, methods=["POST"]),
        ]

    async def home(self, request: Request) -> Response:
        """All products, or those that a search finds."""
        words = request.query_params.get("q", "").strip()
        found = (
            self.rows("SELECT * FROM product WHERE name LIKE ? ORDER BY name", f"%{words}%") if words else []
        )
        return self.page("home", words=words, products=found, categories=sorted(THINGS))

    async def category(self, request: Request) -> Response:
        """The products of a category."""
        name = request.path_params["name"]
        found = self.rows("SELECT * FROM product WHERE category = ? ORDER BY name", name)
        return self.page("category", name=name, products=found)

    async def product(self, request: Request) -> Response:
        """One product and what was said about it."""
        number = request.path_params["id"]
        reviews = self.rows("SELECT * FROM review WHERE product_id = ? ORDER BY id", number)
        wished = bool(self.rows("SELECT 1 FROM wish WHERE product_id = ?", number))
        return self.page("product", product=self._product(number), reviews=reviews, wished=wished)

    async def add(self, request: Request) -> Response:
        """Put pieces of a product into the cart."""
        product = self._product(request.path_params["id"])
        pieces = whole(await request.form(), "quantity", 1, 99)
        self.run(
            "INSERT INTO cart VALUES (?, ?) ON CONFLICT DO UPDATE SET quantity = quantity + excluded.quantity",
            product["id"], pieces,
        )  # fmt: skip
        return go("/cart")

    async def wish(self, request: Request) -> Response:
        """Put a product on the wish list."""
        self.run("INSERT INTO wish VALUES (?)", self._product(request.path_params["id"])["id"])
        return go("/wishes")

    async def review(self, request: Request) -> Response:
        """Say something about a product."""
        number, form = self._product(request.path_params["id"])["id"], await request.form()
        self.run(
            "INSERT INTO review (product_id, author, stars, body) VALUES (?, ?, ?, ?)",
            number, self.user, whole(form, "stars", 1, 5), field(form, "body"),
        )  # fmt: skip
        return go(f"/product/{number}")

    async def wishes(self, request: Request) -> Response:
        """The wish list."""
        return self.page(
            "wishes", products=self.rows("SELECT product.* FROM wish JOIN product ON id = product_id")
        )

    async def cart(self, request: Request) -> Response:
        """What is in the cart."""
        lines = self._cart()
        return self.page("cart", lines=lines, total=sum(x["cents"] * x["quantity"] for x in lines))

    async def change_cart(self, request: Request) -> Response:
        """Another quantity, or out with it."""
        number, form = request.path_params["id"], await request.form()
        if "remove" in form:
            self.run("DELETE FROM cart WHERE product_id = ?", number)
        else:
            self.run(
                "UPDATE cart SET quantity = ? WHERE product_id = ?", whole(form, "quantity", 1, 99), number
            )
        return go("/cart")

    async def checkout(self, request: Request) -> Response:
        """Where the order goes."""
        return self.page("checkout", lines=self._cart(), shipping=SHIPPING)

    async def place(self, request: Request) -> Response:
        """Place the order: the cart becomes its lines and the stock goes down."""
        lines, form = self._cart(), await request.form()
        if not lines:
            raise WrongInput("The cart is empty.")
        address = [field(form, name) for name in ("name", "street", "city")]
        how = choice(form, "shipping", SHIPPING)
        self.run("INSERT INTO orders (customer, street, city, shipping, status) VALUES (?, ?, ?, ?, 'new')",
                 *address, how)  # fmt: skip
        number = self.row("SELECT max(id) AS id FROM orders")["id"]
        for line in lines:
            self.run(
                "INSERT INTO line VALUES (?, ?, ?, ?)", number, line["id"], line["quantity"], line["cents"]
            )
            self.run("UPDATE product SET stock = stock - ? WHERE id = ?", line["quantity"], line["id"])
        self.run("DELETE FROM cart")
        return self.page("message", message=f"Thank you. Your order has the number {number}.")

    async def office(self, request: Request) -> Response:
        """The way to products and orders."""
        return self.page("office")

    async def products(self, request: Request) -> Response:
        """All products with their stock."""
        return self.page("products", products=self.rows("SELECT * FROM product ORDER BY name"))

    async def edit(self, request: Request) -> Response:
        """A product's price and stock."""
        return self.page("edit", product=self._product(request.path_params["id"]))

    async def save(self, request: Request) -> Response:
        """Keep them."""
        number, form = self._product(request.path_params["id"])["id"], await request.form()
        price = field(form, "price")
        if not re.fullmatch(r"\d{1,5}(\.\d{1,2})?", price):
            raise WrongInput("A price is written as 12.50.")
        self.run(
            "UPDATE product SET cents = ?, stock = ? WHERE id = ?",
            round(float(price) * 100), whole(form, "stock", 0, 10_000), number,
        )  # fmt: skip
        return go("/office/products")

    async def orders(self, request: Request) -> Response:
        """All orders."""
        return self.page("orders", orders=self.rows("SELECT * FROM orders ORDER BY id"))

    async def order(self, request: Request) -> Response:
        """One order with its lines."""
        order = self.row("SELECT * FROM orders WHERE id = ?", request.path_params["id"])
        lines = self.rows(
            "SELECT name, quantity, line.cents FROM line JOIN product ON id = product_id WHERE order_id = ?",
            order["id"],
        )
        total = sum(x["cents"] * x["quantity"] for x in lines)
        return self.page("order", order=order, lines=lines, total=total, statuses=STATUSES)

    async def set_status(self, request: Request) -> Response:
        """An order's status."""
        status = choice(await request.form(), "status", STATUSES)
        self.run("UPDATE orders SET status = ? WHERE id = ?", status, request.path_params["id"])
        return go("/office/orders")

    def _product(self, number: int) -> dict[str, object]:
        return dict(self.row("SELECT * FROM product WHERE id = ?", number))

    def _cart(self) -> list[dict[str, int]]:
        sql = "SELECT id, name, cents, quantity FROM cart JOIN product ON id = product_id ORDER BY name"
        return [dict(row) for row in self.rows(sql)]
