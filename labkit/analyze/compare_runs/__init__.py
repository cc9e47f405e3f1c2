"""Notebook 06: keep the change, go back, or not comparable."""
