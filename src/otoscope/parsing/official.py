"""The official rule: two whole numbers and nothing else."""

from __future__ import annotations


def parse_official(text: str) -> tuple[int, int] | None:
    """Return the scores of Assistant 1 and 2 by the official script's rule, or ``None``.

    The text is stripped, every newline deleted, the rest split at each single space: there must be exactly
    two parts, both accepted by Python's ``int()`` (``+7``, ``1_0`` and other scripts' digits are), neither
    above 10. Negative numbers pass.
    """
    try:
        first, second = map(int, text.strip().replace("\n", "").split(" "))
    except ValueError:  # from int(), and from a number of parts that is not two
        return None
    return (first, second) if first <= 10 and second <= 10 else None
