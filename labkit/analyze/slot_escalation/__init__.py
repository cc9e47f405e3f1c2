"""Notebook 01: what more slots change."""
