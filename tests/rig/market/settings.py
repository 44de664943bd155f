"""The settings: where the server and the database are stands in the environment."""

import os

SECRET_KEY = "not a secret, but long enough"
USE_TZ = True
TIME_ZONE = "UTC"
ROOT_URLCONF = "tests.rig.market.urls"
INSTALLED_APPS = [
    "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions",
    "django.contrib.messages", "timeoutq.django", "tests.rig.market",
]  # fmt: skip
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {
    "default": {
        "ENGINE": os.environ.get("MARKET_ENGINE", "django.db.backends.sqlite3"),
        "NAME": os.environ.get("MARKET_DATABASE", ":memory:"),
        "HOST": os.environ.get("MARKET_HOST", ""),
        "USER": os.environ.get("MARKET_USER", ""),
        "CONN_MAX_AGE": int(os.environ.get("MARKET_CONN_MAX_AGE", "0")),
    },
    "other": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
}
TASKS = {
    "default": {
        "BACKEND": "timeoutq.django.Backend",
        "QUEUES": ["default", "mails"],
        "OPTIONS": {
            "prefix": os.environ.get("MARKET_PREFIX", "market-"),
            "timeout": float(os.environ.get("MARKET_TIMEOUT", "30")),
        },
    }
}
