"""Notebook 04: does the server's account of itself agree with its clients'?"""
