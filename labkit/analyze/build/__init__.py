"""Notebook 00: is the engine what it was meant to be?"""
