"""The vocabulary of `sql-tiny`. A tokenizer for it gives each word one token."""

TABLES = (
    *("lamp", "book", "boat", "coin", "drum", "farm", "goat", "hall", "iron", "kite", "lens", "mill", "nest"),
    *("oven", "pond", "quay", "rose", "seed", "tent", "vase", "wolf", "yard", "barn", "card", "door", "fish"),
    *("gate", "horn", "lake", "moth"),
)
LOGBOOKS = ("log", "notes", "audit")
LABELS = (
    *("title", "label", "code", "alias", "tag", "mark", "sign", "key", "handle", "serial", "badge"),
    *("motto", "stamp", "crest", "token", "nick"),
)
CATEGORIES = (
    *("color", "shape", "brand", "class", "owner", "grade", "state", "style", "theme", "genre", "phase"),
    *("voice", "wood", "metal", "fabric", "scent"),
)
NUMBERS = (
    *("price", "weight", "size", "age", "stock", "rank", "speed", "depth", "power", "score", "yield"),
    *("width", "pages", "floor", "seats", "visits"),
)
VALUES = (
    *("amber", "basil", "cedar", "dusk", "ember", "flint", "glass", "hazel", "ivory", "jade", "khaki"),
    *("linen", "maple", "navy", "olive", "pearl", "quartz", "ruby", "slate", "topaz", "umber", "violet"),
    *("wheat", "xenon", "yellow", "zinc", "birch", "coral", "delta", "frost"),
)
WORDS = (*TABLES, *LOGBOOKS, *LABELS, *CATEGORIES, *NUMBERS, *VALUES)
