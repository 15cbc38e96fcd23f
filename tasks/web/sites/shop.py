"""Tasks on the shop: customers browse, fill a cart, order and review; the office sets prices, stock and orders."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator, Sequence

from palestra.tasks.web.actions import choose, click, done, fill, goto
from palestra.tasks.web.sites.build import Goal, Kind, image, one, rows, text

HOST = "http://shop.test"
SCHEMA = """
CREATE TABLE product (id INTEGER PRIMARY KEY, name TEXT UNIQUE, category TEXT, cents INTEGER, stock INTEGER);
CREATE TABLE cart (product_id INTEGER PRIMARY KEY, quantity INTEGER);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, street TEXT, city TEXT, shipping TEXT, status TEXT);
CREATE TABLE line (order_id INTEGER, product_id INTEGER, quantity INTEGER, cents INTEGER);
CREATE TABLE review (id INTEGER PRIMARY KEY, product_id INTEGER, author TEXT, stars INTEGER, body TEXT);
CREATE TABLE wish (product_id INTEGER PRIMARY KEY);
"""
ADJECTIVES = (
    "amber", "blue", "copper", "dark", "elegant", "folding", "green", "heavy", "ivory", "jolly", "knitted", "light",
    "modern", "navy", "oval",
)  # fmt: skip
THINGS = {
    "lighting": ["lamp", "lantern", "candle", "torch"],
    "kitchen": ["kettle", "pan", "teapot", "whisk", "bowl"],
    "garden": ["spade", "rake", "planter", "hose"],
    "office": ["stapler", "notebook", "chair", "desk"],
}
PEOPLE = [
    "Ada Lovell",
    "Ben Carter",
    "Cleo Marsh",
    "Dora Finch",
    "Emil Stone",
    "Fay Brook",
    "Gus Hale",
    "Hana Reed",
]
CITIES = ["Lund", "Ghent", "Turin", "Porto", "Graz", "Bergen"]
STREETS = ["Mill Lane", "High Street", "Church Road", "Park Avenue"]
STATUSES = ("new", "paid", "shipped", "cancelled")
REMARKS = (
    "Works as it should.",
    "Smaller than I thought.",
    "My favourite by far.",
    "It broke within a week.",
)


def build(seed: int) -> bytes:
    """The shop of one seed."""
    rng = random.Random(f"shop/{seed}")
    names = [(f"{rng.choice(ADJECTIVES)} {thing}", c) for c, things in THINGS.items() for thing in things]
    prices = rng.sample(range(500, 9000, 25), len(names))
    products = [
        (i, n, c, p, rng.randint(3, 60)) for i, ((n, c), p) in enumerate(zip(names, prices, strict=True), 1)
    ]
    orders = list(_orders(rng))
    lines = [
        (order[0], product[0], rng.randint(1, 4), product[3])
        for order in orders
        for product in rng.sample(products, rng.randint(1, 3))
    ]
    reviews = [
        (i, rng.randint(1, len(products)), rng.choice(PEOPLE), rng.randint(1, 5), rng.choice(REMARKS))
        for i in range(1, 16)
    ]
    cart = [(p[0], rng.randint(1, 3)) for p in rng.sample(products, 3)]
    return image(
        SCHEMA, {"product": products, "orders": orders, "line": lines, "review": reviews, "cart": cart}
    )


def _orders(rng: random.Random) -> Iterator[tuple[object, ...]]:
    for number, person in enumerate(rng.sample(PEOPLE, 6), 1001):
        street = f"{rng.choice(STREETS)} {rng.randint(1, 99)}"
        status = STATUSES[number % 2] if number < 1005 else rng.choice(STATUSES)
        yield number, person, street, rng.choice(CITIES), rng.choice(("standard", "express")), status


def _product(
    db: sqlite3.Connection, rng: random.Random, in_cart: bool = False
) -> Sequence[tuple[int, str, str, int, int]]:
    """Two products, in the cart or not, as (id, name, category, cents, stock)."""
    word = "IN" if in_cart else "NOT IN"
    found = rows(db, f"SELECT * FROM product WHERE id {word} (SELECT product_id FROM cart) ORDER BY id")
    return rng.sample(found, 2)


def _see(name: str) -> list[str]:
    """Open a product's page by searching for it."""
    return [fill("Search", name, "searchbox"), click("button", "Search"), click("link", name)]


def _office(what: str) -> list[str]:
    return [click("link", "Office"), click("link", what)]


def add_to_cart(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """Some pieces of one product."""
    (a, name, *_), (b, other, *_) = _product(db, rng)
    n = rng.randint(2, 5)
    gold = [*_see(name), fill("Quantity", str(n), "spinbutton"), click("button", "Add to cart"), done()]
    return Goal(
        f'Put {n} pieces of "{name}" into the cart.',
        gold,
        [f"INSERT INTO cart VALUES ({a}, {n})"],
        near_misses={
            "one piece": [*_see(name), click("button", "Add to cart"), done()],
            "other product": [*_see(other), *gold[3:]],
        },
    )


def remove_from_cart(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """One product of those in the cart."""
    (a, name, *_), (b, other, *_) = _product(db, rng, in_cart=True)

    def take_out(what: str) -> list[str]:
        return [click("link", "Cart"), click("button", f"Remove {what}")]

    return Goal(
        f'Remove "{name}" from the cart and leave everything else in it.',
        [*take_out(name), done()],
        [f"DELETE FROM cart WHERE product_id = {a}"],
        near_misses={
            "other product": [*take_out(other), done()],
            "both": [*take_out(name), *take_out(other), done()],
        },
    )


def change_quantity(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """Of a product in the cart."""
    (a, name, *_), (_, other, *_) = _product(db, rng, in_cart=True)
    n = rng.randint(5, 9)

    def set_to(what: str, number: int) -> list[str]:
        field = fill(f"Quantity of {what}", str(number), "spinbutton")
        return [click("link", "Cart"), field, click("button", f"Update {what}")]

    return Goal(
        f'Change the quantity of "{name}" in the cart to {n}.',
        [*set_to(name, n), done()],
        [f"UPDATE cart SET quantity = {n} WHERE product_id = {a}"],
        near_misses={
            "other quantity": [*set_to(name, n + 1), done()],
            "other product": [*set_to(other, n), done()],
            "not saved": [*set_to(name, n)[:2], done()],
        },
    )


def cheapest(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """One piece of the cheapest product of a category."""
    category = rng.choice(sorted(THINGS))
    (a, name, n), (_, other, _) = rows(
        db,
        "SELECT id, name, coalesce(quantity, 0) FROM product LEFT JOIN cart ON product_id = id"
        " WHERE category = ? ORDER BY cents LIMIT 2",
        category,
    )
    change = (
        f"UPDATE cart SET quantity = {n + 1} WHERE product_id = {a}"
        if n
        else f"INSERT INTO cart VALUES ({a}, 1)"
    )

    def add(what: str) -> list[str]:
        return [click("link", category), click("link", what), click("button", "Add to cart"), done()]

    return Goal(
        f"Add one piece of the cheapest product in the category {category} to the cart.",
        add(name),
        [change],
        near_misses={"second cheapest": add(other)},
    )


def order(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """Check out what is in the cart."""
    person, street = rng.choice(PEOPLE), f"{rng.choice(STREETS)} {rng.randint(1, 99)}"
    city, shipping = rng.choice(CITIES), rng.choice(("standard", "express"))
    number = one(db, "SELECT max(id) + 1 FROM orders")

    def check_out(who: str, how: str) -> list[str]:
        fields = [fill("Name", who), fill("Street", street), fill("City", city), choose("Shipping", how)]
        return [
            click("link", "Cart"),
            click("link", "Check out"),
            *fields,
            click("button", "Place order"),
            done(),
        ]

    other = "standard" if shipping == "express" else "express"
    return Goal(
        f"Order what is in the cart for {person}, {street}, {city}, with {shipping} shipping.",
        check_out(person, shipping),
        [
            f"INSERT INTO orders VALUES ({number}, {text(person)}, {text(street)}, {text(city)}, "
            f"{text(shipping)}, 'new')",
            f"INSERT INTO line SELECT {number}, id, quantity, cents FROM cart JOIN product ON id = product_id",
            "UPDATE product SET stock = stock - coalesce((SELECT quantity FROM cart WHERE product_id = id), 0)",
            "DELETE FROM cart",
        ],
        near_misses={
            "other shipping": check_out(person, other),
            "other name": check_out("Ann Other", shipping),
            "not placed": [*check_out(person, shipping)[:-2], done()],
        },
    )


def review(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """Stars and a sentence for a product."""
    (a, name, *_), (_, other, *_) = _product(db, rng)
    stars, body = rng.randint(1, 5), rng.choice(REMARKS)
    number = one(db, "SELECT max(id) + 1 FROM review")

    def write(what: str, given: int) -> list[str]:
        fields = [choose("Stars", str(given)), fill("Review", body)]
        return [*_see(what), *fields, click("button", "Send review"), done()]

    return Goal(
        f'Review "{name}" with {stars} stars and the text "{body}".',
        write(name, stars),
        [f"INSERT INTO review VALUES ({number}, {a}, 'robin', {stars}, {text(body)})"],
        near_misses={"other stars": write(name, stars % 5 + 1), "other product": write(other, stars)},
    )


def wish(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """Two products on the wish list."""
    (a, name, *_), (b, other, *_) = _product(db, rng)

    def want(what: str) -> list[str]:
        return [*_see(what), click("button", "Add to wish list")]

    return Goal(
        f'Put "{name}" and "{other}" on the wish list.',
        [*want(name), *want(other), done()],
        [f"INSERT INTO wish VALUES ({a}), ({b})"],
        near_misses={"one of two": [*want(name), done()]},
    )


def price(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """The office changes a price."""
    (a, name, _, cents, _), (_, other, *_) = _product(db, rng)
    euros = f"{cents // 100 + rng.randint(2, 9)}.50"

    def put(what: str, to: str) -> list[str]:
        fields = [fill("Price", to), click("button", "Save"), done()]
        return [*_office("Products"), click("link", f"Edit {what}"), *fields]

    return Goal(
        f'In the office, change the price of "{name}" to {euros} euros.',
        put(name, euros),
        [f"UPDATE product SET cents = {round(float(euros) * 100)} WHERE id = {a}"],
        near_misses={
            "other product": put(other, euros),
            "without cents": put(name, euros.replace(".50", ".00")),
            "not saved": [*put(name, euros)[:-2], done()],
        },
    )


def stock(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """The office counts again."""
    (a, name, *_), (_, other, *_) = _product(db, rng)
    n = rng.randint(70, 120)

    def put(what: str, to: int) -> list[str]:
        fields = [fill("Stock", str(to), "spinbutton"), click("button", "Save"), done()]
        return [*_office("Products"), click("link", f"Edit {what}"), *fields]

    return Goal(
        f'In the office, set the stock of "{name}" to {n}.',
        put(name, n),
        [f"UPDATE product SET stock = {n} WHERE id = {a}"],
        near_misses={"other product": put(other, n), "one more": put(name, n + 1)},
    )


def ship(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """The office marks a customer's order as shipped."""
    (number, customer), (other, _) = rng.sample(
        rows(db, "SELECT id, customer FROM orders WHERE status IN ('new', 'paid')"), 2
    )
    return Goal(
        f"In the office, mark the order of {customer} as shipped.",
        _set_status(number, "shipped"),
        [f"UPDATE orders SET status = 'shipped' WHERE id = {number}"],
        near_misses={"other order": _set_status(other, "shipped"), "paid": _set_status(number, "cancelled")},
    )


def cancel(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """The office cancels every new order."""
    new = rows(db, "SELECT id FROM orders WHERE status = 'new'")
    return Goal(
        "In the office, cancel every order whose status is new.",
        [*(a for number in new for a in _set_status(number, "cancelled")[:-1]), done()],
        ["UPDATE orders SET status = 'cancelled' WHERE status = 'new'"],
        near_misses={"one left": [*(a for n in new[1:] for a in _set_status(n, "cancelled")[:-1]), done()]},
    )


def _set_status(number: int, status: str) -> list[str]:
    changes = [choose("Status", status), click("button", "Save")]
    return [*_office("Orders"), click("link", f"Order {number}"), *changes, done()]


def how_many(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """A question about a category."""
    category = rng.choice(sorted(THINGS))
    limit = rng.choice(rows(db, "SELECT cents FROM product WHERE category = ? ORDER BY cents", category)[1:])
    n = one(db, "SELECT count(*) FROM product WHERE category = ? AND cents < ?", category, limit)
    look = [click("link", category)]
    return Goal(
        f"How many products in the category {category} cost less than {limit / 100:.2f} euros?",
        [*look, done(str(n))],
        answer=str(n),
        near_misses={"one more": [*look, done(str(n + 1))], "no answer": [*look, done()]},
    )


def total(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """A question about an order."""
    number, customer = rng.choice(rows(db, "SELECT id, customer FROM orders"))
    cents = one(db, "SELECT sum(quantity * cents) FROM line WHERE order_id = ?", number)
    look = [*_office("Orders"), click("link", f"Order {number}")]
    return Goal(
        f"What is the total in euros of the order of {customer}? Answer with the number.",
        [*look, done(f"{cents / 100:.2f}")],
        answer=f"{cents / 100:.2f}",
        near_misses={"a cent off": [*look, done(f"{(cents + 1) / 100:.2f}")]},
    )


def best_reviewed(db: sqlite3.Connection, rng: random.Random) -> Goal:
    """A question that takes a look at a product's page."""
    a, name = rng.choice(
        rows(db, "SELECT id, name FROM product WHERE id IN (SELECT product_id FROM review) ORDER BY id")
    )
    n = one(db, "SELECT count(*) FROM review WHERE product_id = ?", a)
    return Goal(
        f'How many reviews does "{name}" have?',
        [goto(f"{HOST}/product/{a}"), done(str(n))],
        answer=str(n),
        near_misses={"none": [goto(f"{HOST}/product/{a}"), done("0")]},
    )


KINDS: dict[str, Kind] = {
    kind.__name__.replace("_", "-"): kind
    for kind in (
        add_to_cart, remove_from_cart, change_quantity, cheapest, order, review, wish, price, stock, ship, cancel,
        how_many, total, best_reviewed,
    )
}  # fmt: skip
