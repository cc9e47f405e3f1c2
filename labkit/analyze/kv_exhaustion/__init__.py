"""Notebook 05: a unified KV pool that runs out."""
