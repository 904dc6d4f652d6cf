"""Views: what each page of the viewer is told, as JSON."""
