"""Routes: the paths under ``/api`` and what each answers."""
