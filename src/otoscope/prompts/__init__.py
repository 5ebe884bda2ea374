"""The judge prompt, as text files."""
