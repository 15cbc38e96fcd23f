"""What a generated world is made of: kinds of entities, the relations between them, and how both are put into words.

A relation belongs to the passage of its subject alone, so that a fact that is left out there is nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["person", "town", "company", "book", "river"]
COUNTS: dict[Kind, int] = {"person": 40, "town": 18, "company": 16, "book": 24, "river": 10}


@dataclass(frozen=True, slots=True)
class Relation:
    """subject -> object, or -> a number where `object` is None.

    `phrase` names the object in a question, `ask` asks for it; `says` are sentences of the subject's passage.
    """

    name: str
    subject: Kind
    object: Kind | None
    phrase: str
    ask: str
    says: tuple[str, ...]
    low: int = 0
    high: int = 0


RELATIONS: tuple[Relation, ...] = (
    Relation("birthplace", "person", "town", "the town where {x} was born", "In which town was {x} born?",
             ("{x} was born in {y}.", "Born in {y}, {x} left home early.")),
    Relation("mentor", "person", "person", "the mentor of {x}", "Who was the mentor of {x}?",
             ("The mentor of {x} was {y}.", "{x} was a pupil of {y}.")),
    Relation("employer", "person", "company", "the company that employed {x}", "Which company employed {x}?",
             ("For twenty years {x} worked for {y}.", "{x} spent a career at {y}.")),
    Relation("bedside book", "person", "book", "the book that {x} kept at the bedside",
             "Which book did {x} keep at the bedside?",
             ("{x} kept {y} at the bedside.", "The bedside book of {x} was {y}.")),
    Relation("birth year", "person", None, "", "In which year was {x} born?",
             ("The year of birth is given as {y}.", "The parish book has the birth in {y}."), 1610, 1890),
    Relation("mayor", "town", "person", "the mayor of {x}", "Who was the mayor of {x}?",
             ("The mayor of {x} was {y}.", "{y} was mayor of {x} for a long time.")),
    Relation("river", "town", "river", "the river that runs through {x}", "Which river runs through {x}?",
             ("The river {y} runs through {x}.", "{x} lies on the {y}.")),
    Relation("population", "town", None, "", "How many people live in {x}?",
             ("{x} has {y} inhabitants.", "At the last census {y} people lived there."), 900, 98_000),
    Relation("founder", "company", "person", "the founder of {x}", "Who founded {x}?",
             ("{x} was founded by {y}.", "The founder was {y}.")),
    Relation("seat", "company", "town", "the town where {x} has its seat", "In which town does {x} have its seat?",
             ("{x} has its seat in {y}.", "The company is based in {y}.")),
    Relation("founding year", "company", None, "", "In which year was {x} founded?",
             ("The company goes back to {y}.", "Its first ledger is of {y}."), 1700, 1930),
    Relation("author", "book", "person", "the author of {x}", "Who wrote {x}?",
             ("{x} is a novel by {y}.", "The author of {x} is {y}.")),
    Relation("publisher", "book", "company", "the publisher of {x}", "Which company published {x}?",
             ("{x} was published by {y}.", "The publisher was {y}.")),
    Relation("pages", "book", None, "", "How many pages has the first edition of {x}?",
             ("The first edition has {y} pages.", "It ran to {y} pages when it appeared."), 90, 940),
    Relation("mouth", "river", "town", "the town where {x} reaches the sea", "In which town does {x} reach the sea?",
             ("{x} reaches the sea at {y}.", "Its mouth is at {y}.")),
    Relation("length", "river", None, "", "How long is {x} in kilometres?",
             ("{x} is {y} kilometres long.", "From source to mouth it measures {y} kilometres."), 40, 990),
)  # fmt: skip

OPENINGS: dict[Kind, str] = {
    "person": "{x} is known from several archives.",
    "town": "{x} is a small town.",
    "company": "{x} is an old company.",
    "book": "{x} is a book that few have read.",
    "river": "{x} is a slow river.",
}
FILLERS: dict[Kind, tuple[str, ...]] = {
    "person": (
        "Letters from these years are kept in a private archive.",
        "A portrait hangs in the old library.",
        "Friends remembered a dry sense of humour.",
        "The house of the family burned down and was never rebuilt.",
    ),
    "town": (
        "The market square is paved with grey stone.",
        "A fair is held there every autumn.",
        "The walls were taken down to make room for a railway.",
        "Its bells were cast twice.",
    ),
    "company": (
        "It began with a single workshop.",
        "A strike closed its gates for one winter.",
        "Most of its early records are lost.",
        "It was known for careful bookkeeping.",
    ),
    "book": (
        "Critics praised the opening chapter.",
        "A stage version failed after three evenings.",
        "It was translated into several languages.",
        "The manuscript shows many corrections.",
    ),
    "river": (
        "It freezes in hard winters.",
        "Barges used it until the railway came.",
        "Its upper valley is almost empty.",
        "Floods are recorded every few decades.",
    ),
}

STARTS = (
    *(
        "Al",
        "Bra",
        "Cor",
        "Del",
        "Er",
        "Fal",
        "Gri",
        "Hol",
        "Is",
        "Jor",
        "Kel",
        "Lor",
        "Mar",
        "Nor",
        "Os",
        "Pel",
    ),
    *("Quen", "Ras", "Sol", "Tor", "Ul", "Vel", "Wil", "Yor", "Zan", "Dra", "Fen", "Mil", "Ster", "Tha"),
)
MIDDLES = ("", "a", "e", "i", "o", "an", "en", "in", "or", "ar", "el", "il", "und", "est", "om", "av")
ENDS: dict[str, tuple[str, ...]] = {
    "given": ("a", "ik", "us", "ia", "en", "is", "o", "eth", "wen", "ar", "ine", "ius"),
    "family": (
        "berg",
        "dahl",
        "feld",
        "mann",
        "sen",
        "stad",
        "ström",
        "wick",
        "holt",
        "ner",
        "lund",
        "quist",
    ),
    "town": ("burg", "ford", "haven", "mouth", "stead", "ton", "by", "minster", "dorf", "pool", "gate"),
    "river": ("ra", "va", "ne", "be", "sel", "der", "na", "ze"),
    "company": ("ex", "on", "ax", "um", "or", "ix", "al"),
}
TRADES = ("Works", "Brothers", "Press", "Mills", "Shipping", "Foundry", "Glass", "Instruments")
ADJECTIVES = (
    "Silent",
    "Broken",
    "Hidden",
    "Last",
    "Second",
    "Golden",
    "Winter",
    "Distant",
    "Paper",
    "Salt",
    "Iron",
)
NOUNS = (
    "Harbour",
    "Orchard",
    "Staircase",
    "Lantern",
    "Meridian",
    "Garden",
    "Winter",
    "Archive",
    "Bridge",
    "Mirror",
)
