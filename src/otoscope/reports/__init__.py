"""Reporters: what shows a summary, one file each."""
