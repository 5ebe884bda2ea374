"""How large numbers, and numbers that are not exact, are written for people, in every report."""

from __future__ import annotations

from otoscope.errors import counted
from otoscope.records import Estimate


def short_count(count: int) -> str:
    """Return a count in three digits: 987, 12.3k, 1.24M."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= 0.9995 * size:
            return f"{count / size:.3g}{unit}"
    return str(count)


def estimate_told(estimate: Estimate) -> str:
    """Return what verdicts will use, in two digits, and what that was worked out from."""
    tokens = estimate.prompt_tokens, estimate.completion_tokens
    into, out = (short_count(round(_about(count))) for count in tokens)
    cost = f", cost {money(_about(estimate.cost))}" if estimate.cost is not None else ""
    each = f"{estimate.completion_tokens / max(1, estimate.calls):.3g}"
    tokens_each = f"{each} token" if each == "1" else f"{each} tokens"
    basis = [f"verdicts of {tokens_each}{' as so far' if estimate.replies_known else ''}"]
    if estimate.unknown_answers:
        so_far = " as so far" if estimate.answers_known else ""
        basis.append(f"answers of {estimate.answer_characters:.0f} characters{so_far}")
    return (
        f"about {counted(estimate.calls, 'call')} to the judge, {into} tokens in, {out} out{cost} "
        f"(by the lengths of the texts, {', '.join(basis)}; without retries)"
    )


def money(amount: float) -> str:
    """Return an amount with two decimals; one below 1 with two digits."""
    return f"{amount:,.2f}" if amount >= 1 or not amount else f"{amount:.2g}"


def _about(number: float) -> float:
    """Return a number rounded to two digits."""
    return float(f"{number:.2g}")
