"""Notebook 02: unified and split KV cache."""
