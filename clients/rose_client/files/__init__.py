"""Texts from files and vectors to files, a block at a time."""
