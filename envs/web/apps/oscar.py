"""Django Oscar, a shop that other people wrote, as a world: `task.data["app"] = {"builder": "...oscar:build", ...}`.

Nothing of it is changed. It runs in this process through WSGI; each episode has its own SQLite file, a copy of one that
is made once per process, and a request is served from the file of its episode: Django keeps a connection per thread,
which is pointed there before the request. `checks` are queries on that file with the rows that they must return.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import sqlite3
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from palestra.envs.errors import EnvSetupError
from palestra.envs.web.gateway import App, wsgi
from palestra.rewards.score import GraderError
from palestra.tasks.task import Task
from palestra.trajectories.model import Score

PRODUCTS = (("Red kettle", "19.50", 12), ("Blue kettle", "24.00", 3), ("Oak table", "249.00", 5))
_STARTING = threading.Lock()
_APPS = [
    "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions", "django.contrib.sites",
    "django.contrib.messages", "django.contrib.staticfiles", "django.contrib.flatpages", "oscar.config.Shop",
    "oscar.apps.analytics.apps.AnalyticsConfig", "oscar.apps.checkout.apps.CheckoutConfig",
    "oscar.apps.address.apps.AddressConfig", "oscar.apps.shipping.apps.ShippingConfig",
    "oscar.apps.catalogue.apps.CatalogueConfig", "oscar.apps.catalogue.reviews.apps.CatalogueReviewsConfig",
    "oscar.apps.communication.apps.CommunicationConfig", "oscar.apps.partner.apps.PartnerConfig",
    "oscar.apps.basket.apps.BasketConfig", "oscar.apps.payment.apps.PaymentConfig",
    "oscar.apps.offer.apps.OfferConfig", "oscar.apps.order.apps.OrderConfig",
    "oscar.apps.customer.apps.CustomerConfig", "oscar.apps.search.apps.SearchConfig",
    "oscar.apps.voucher.apps.VoucherConfig", "oscar.apps.wishlists.apps.WishlistsConfig",
    "oscar.apps.dashboard.apps.DashboardConfig", "oscar.apps.dashboard.reports.apps.ReportsDashboardConfig",
    "oscar.apps.dashboard.users.apps.UsersDashboardConfig",
    "oscar.apps.dashboard.orders.apps.OrdersDashboardConfig",
    "oscar.apps.dashboard.catalogue.apps.CatalogueDashboardConfig",
    "oscar.apps.dashboard.offers.apps.OffersDashboardConfig",
    "oscar.apps.dashboard.partners.apps.PartnersDashboardConfig",
    "oscar.apps.dashboard.pages.apps.PagesDashboardConfig",
    "oscar.apps.dashboard.ranges.apps.RangesDashboardConfig",
    "oscar.apps.dashboard.reviews.apps.ReviewsDashboardConfig",
    "oscar.apps.dashboard.vouchers.apps.VouchersDashboardConfig",
    "oscar.apps.dashboard.communications.apps.CommunicationsDashboardConfig",
    "oscar.apps.dashboard.shipping.apps.ShippingDashboardConfig", "widget_tweaks", "haystack", "treebeard",
    "django_tables2", "sorl.thumbnail",
]  # fmt: skip


class OscarShop:
    """One shop on one SQLite file. `checks`: (SQL, rows) pairs."""

    host, start = "oscar.test", "/en-gb/catalogue/red-kettle_1/"

    def __init__(self, checks: Sequence[tuple[str, Sequence[Sequence[Any]]]] = ()) -> None:
        with _STARTING:
            template, self._handler = _django()
        folder = Path(tempfile.mkdtemp(prefix="palestra-oscar-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._path = folder / "shop.sqlite"
        shutil.copyfile(template, self._path)
        self._checks = checks
        self.app: App = wsgi(self._serve)

    def save(self) -> bytes:
        """What customers and staff can change, as SQL text; sessions and visits are left out."""
        with closing(sqlite3.connect(self._path)) as database:
            lines = [s for s in database.iterdump() if not s.startswith(_FLEETING)]
        return "\n".join(lines).encode()

    def load(self, state: bytes) -> None:
        """Put a state back."""
        self._path.unlink()
        with closing(sqlite3.connect(self._path)) as database:
            database.executescript(state.decode())

    def grade(self, task: Task, answer: str | None) -> Score:
        """Every check must return its rows. Raises GraderError for a check that does not run."""
        wrong = []
        try:
            with closing(sqlite3.connect(self._path)) as database:
                for sql, wanted in self._checks:
                    found = [list(row) for row in database.execute(sql)]
                    wrong += [] if found == [list(row) for row in wanted] else [f"{sql}: {found}"]
        except sqlite3.Error as error:
            raise GraderError(f"task {task.id!r}: a check does not run: {error}") from error
        return Score(
            float(not wrong), True, {}, "web-queries", "1", "; ".join(wrong)[:500] or "all checks hold"
        )

    def _serve(self, environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        from django.db import connection

        connection.close()
        connection.settings_dict = {**connection.settings_dict, "NAME": str(self._path)}
        found: Iterable[bytes] = self._handler(environ, start_response)
        return found


_FLEETING = ('INSERT INTO "django_session"', 'INSERT INTO "analytics_')


def build(checks: Sequence[tuple[str, Sequence[Sequence[Any]]]] = ()) -> OscarShop:
    """For `task.data["app"]`."""
    return OscarShop(checks)


@functools.cache
def _django() -> tuple[Path, Callable[..., Any]]:
    """(a database with tables and products, the WSGI handler). Raises EnvSetupError without Oscar."""
    try:
        import django
        from django.conf import settings
        from oscar import defaults
    except ModuleNotFoundError as error:
        raise EnvSetupError(f"{error.name} is not installed: pip install django-oscar") from None
    if settings.configured:
        raise EnvSetupError("this process runs another Django project: Oscar needs one of its own")
    folder = tempfile.mkdtemp(prefix="palestra-oscar-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    template = Path(folder) / "template.sqlite"
    settings.configure(**_settings(defaults, template))
    django.setup()
    _populate()
    from django.contrib.staticfiles.handlers import StaticFilesHandler
    from django.core.handlers.wsgi import WSGIHandler
    from django.db import connections

    connections.close_all()
    return template, StaticFilesHandler(WSGIHandler())


def _settings(defaults: Any, template: Path) -> dict[str, Any]:
    shop = {name: value for name, value in vars(defaults).items() if name.isupper()}
    processors = [
        "django.template.context_processors.request", "django.contrib.auth.context_processors.auth",
        "django.template.context_processors.i18n", "django.contrib.messages.context_processors.messages",
        "oscar.apps.search.context_processors.search_form", "oscar.apps.checkout.context_processors.checkout",
        "oscar.apps.communication.notifications.context_processors.notifications",
        "oscar.core.context_processors.metadata",
    ]  # fmt: skip
    middleware = [
        "django.contrib.sessions.middleware.SessionMiddleware", "django.middleware.common.CommonMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware", "oscar.apps.basket.middleware.BasketMiddleware",
    ]  # fmt: skip
    template_options = {"context_processors": processors}
    backends = ["oscar.apps.customer.auth_backends.EmailBackend", "django.contrib.auth.backends.ModelBackend"]
    return shop | {
        "SECRET_KEY": "a shop for practice", "ALLOWED_HOSTS": ["*"], "SITE_ID": 1, "USE_TZ": True,
        "LANGUAGE_CODE": "en-gb", "ROOT_URLCONF": "palestra.envs.web.apps.oscar_urls", "STATIC_URL": "/static/",
        "DATABASES": {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(template),
                                  "ATOMIC_REQUESTS": True}},
        "INSTALLED_APPS": _APPS, "MIDDLEWARE": middleware, "AUTHENTICATION_BACKENDS": backends,
        "TEMPLATES": [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
                       "OPTIONS": template_options}],
        "HAYSTACK_CONNECTIONS": {"default": {"ENGINE": "haystack.backends.simple_backend.SimpleEngine"}},
        "MIGRATION_MODULES": {name.split(".")[-3]: None for name in _APPS if name.startswith("oscar.apps")}
        | dict.fromkeys(("auth", "contenttypes", "sessions", "sites", "flatpages", "reviews", "catalogue", "thumbnail",
                         "reviews_dashboard")),
        "DEFAULT_AUTO_FIELD": "django.db.models.BigAutoField", "LOGGING_CONFIG": None,
        "MEDIA_ROOT": str(template.parent), "THUMBNAIL_DUMMY": True,
    }  # fmt: skip


def _populate() -> None:
    """Tables, and a few products with prices and stock."""
    from django.core.management import call_command
    from oscar.core.loading import get_model

    call_command("migrate", run_syncdb=True, verbosity=0)
    with warnings.catch_warnings():  # the simple search has no index to update, and says so
        warnings.simplefilter("ignore")
        _stock(get_model)


def _stock(get_model: Callable[[str, str], Any]) -> None:
    partner = get_model("partner", "Partner").objects.create(name="Warehouse")
    kind = get_model("catalogue", "ProductClass").objects.create(name="Goods")
    category = get_model("catalogue", "Category").add_root(name="Home")
    for number, (title, price, stock) in enumerate(PRODUCTS, 1):
        product = get_model("catalogue", "Product").objects.create(
            product_class=kind, title=title, upc=str(number)
        )
        product.categories.add(category)
        get_model("partner", "StockRecord").objects.create(
            partner=partner, product=product, partner_sku=str(number), price=price, num_in_stock=stock
        )
