"""A Django project for the tests: its settings, an app with tasks, and a table."""
