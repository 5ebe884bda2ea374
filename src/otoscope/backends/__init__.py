"""Backends: what turns a clip and a question into an answer, one file each."""
