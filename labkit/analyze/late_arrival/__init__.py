"""Notebook 03: does a late request join the batch?"""
