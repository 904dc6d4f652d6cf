"""Servers: what engines behind HTTP have in common, typed on one server's client."""
