"""Write the table of providers in docs/how-to/servers.md anew from src/otoscope/config/providers.py.

Without --write, only say whether it is the one that stands there (exit code 1: it is not).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from otoscope.config import PROVIDERS

PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "servers.md"
BEGIN = "<!-- The table is made by scripts/provider_table.py: change src/otoscope/config/providers.py. -->\n"
END = "<!-- End of the table. -->\n"


def table() -> str:
    """Return the table, as it stands in the page."""
    return "".join(f"| {' | '.join(cells)} |\n" for cells in _rows())


def _rows() -> Iterator[tuple[str, ...]]:
    yield "`--provider`", "URL", "key", "form of the clip", "streams", "beside that", "documented at"
    yield ("---",) * 7
    for name, provider in PROVIDERS.items():
        key = "" if provider.key is None else f"`{provider.key}`"
        if provider.local:
            key = f"{key}, or none" if key else "none"
        yield (
            f"`{name}`: {provider.title}",
            f"`{provider.url}`",
            key,
            f"`{provider.audio_part}`",
            "yes" if provider.stream else "no",
            provider.note,
            "; ".join(provider.sources),
        )


def page_with_table(page: str) -> str:
    """Return the page with the table as it should be."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{PAGE}: the two comments around the table are missing")
    return f"{before}{begin}\n{table()}\n{end}{after}"


def main() -> int:
    """Write the table, or say whether it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write it into the page")
    write = parser.parse_args().write
    page = PAGE.read_text(encoding="utf-8")
    wanted = page_with_table(page)
    if write:
        PAGE.write_text(wanted, encoding="utf-8", newline="\n")
    elif page != wanted:
        print(f"{PAGE}: the table of providers is stale; run scripts/provider_table.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
