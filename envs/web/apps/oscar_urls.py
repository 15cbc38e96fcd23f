"""The addresses of Django Oscar, with languages as Oscar's own documentation has them."""

from __future__ import annotations

from django.apps import apps
from django.conf.urls.i18n import i18n_patterns
from django.urls import include, path

urlpatterns = [
    path("i18n/", include("django.conf.urls.i18n")),
    *i18n_patterns(path("", include(apps.get_app_config("oscar").urls[0]))),
]
