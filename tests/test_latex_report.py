from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otoscope.reports import protocol_card
from otoscope.reports.blocks import inert
from otoscope.reports.latex import escape, render_latex
from otoscope.reports.reported import Reported
from otoscope.texts import catalogue
from tests.conftest import Golden
from tests.report_runs import HOSTILE, hostile_run, reported, small_run, write_run

DOCUMENT = r"""\documentclass{article}
\usepackage{booktabs}
\begin{document}
\listoftables
\input{report.tex}
Table~\ref{tab:chat} is there.
\end{document}
"""


def latex(*runs: Reported, appendix: bool = False, language: str = "en") -> str:
    """Return the report of these runs."""
    return render_latex(runs, catalogue(language), appendix=appendix)


def compiled(text: str, folder: Path, engine: str) -> str:
    """Compile a report twice, as its references need, within an article; return the last log."""
    (folder / "report.tex").write_text(text, encoding="utf-8")
    (folder / "main.tex").write_text(DOCUMENT, encoding="utf-8")
    for _ in range(2):
        done = subprocess.run(
            [engine, "-interaction=nonstopmode", "-no-shell-escape", "main.tex"],
            cwd=folder,
            capture_output=True,
            check=False,
        )
    log = (folder / "main.log").read_text(encoding="utf-8", errors="replace")
    assert done.returncode == 0, log[-3000:]
    assert (folder / "main.pdf").exists()
    return log


def needs(engine: str) -> pytest.MarkDecorator:
    """Return the mark of a test that is skipped where this engine is not installed."""
    return pytest.mark.skipif(shutil.which(engine) is None, reason=f"{engine} is not installed")


def test_two_runs_and_their_appendix_are_as_the_golden_file_has_them(
    tmp_path: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole report of two small runs of two judges."""
    monkeypatch.setattr(protocol_card, "__version__", "0")
    runs = [
        reported(write_run(tmp_path / "a", small_run(), label="baseline")),
        reported(write_run(tmp_path / "b", small_run()[:16], judge={"name": "other-judge"})),
    ]
    golden.check("report.tex", latex(*runs, appendix=True).encode())


def test_a_table_has_booktabs_a_caption_and_a_label(tmp_path: Path) -> None:
    """One row a run, the intervals in small print below it, and no rule but those of booktabs."""
    text = latex(reported(write_run(tmp_path / "run", small_run(), label="my_model & more")))
    assert r"my\_model \& more & 5.50 & 4.93 & 4.79 & 5.00 & 5.05 \\[-2pt]" in text
    assert r"{\scriptsize [3.45, 7.55]}" in text
    assert r"{\scriptsize $\geq$\,4.31}" in text
    assert text.count(r"\toprule") == text.count(r"\midrule") == text.count(r"\bottomrule") == 1
    assert r"\label{tab:chat}" in text
    assert r"\hline" not in text
    assert r"\otoscopeunicode" not in text


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=60))
def test_no_text_holds_a_command_of_its_own(text: str) -> None:
    """Braces balance, none of TeX's own characters stands bare, and all is ASCII but for one place."""
    written = escape(inert(text))
    outside = re.sub(r"\\otoscopeunicode\{[^\x00-\x7f]+\}", r"\\otoscopeunicode{}", written)
    assert outside.isascii()
    plain = re.sub(r"\\(?:[A-Za-z]+|[`'^\"~=.{}$&#_%])", "", outside)
    plain = re.sub(r"\$(?:\^\{\})?\$", "", plain)
    assert not set(plain) & set('\\$&#_^~%"`<>|') - {"~"}
    depth = 0
    for brace in re.findall(r"[{}]", plain):
        depth += 1 if brace == "{" else -1
        assert depth >= 0
    assert depth == 0


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("50 % of $x_1$", r"50 \% of \$x\_1\$"),
        (r"\input{x}", r"\textbackslash{}input\{x\}"),
        ("a--b", "a{-}-b"),
        ("[1] *", "{[}1] *"),
        ("Ça naïve Łódź", r"\c{C}a na\"{i}ve \L{}\'{o}d\'{z}"),
        ("“9 ≥ 8” – ok…", r"\textquotedblleft{}9 $\geq$ 8\textquotedblright{} \textendash{} ok\ldots{}"),
        ("cafe\u0301", r"caf\'{e}"),
        ("通义", r"\otoscopeunicode{通义}{{[}U+901A U+4E49{]}}"),
    ],
)
def test_texts_are_written_for_every_engine(text: str, written: str) -> None:
    """Accents are commands; what pdfLaTeX lacks is there as itself and by its code."""
    assert escape(text) == written


def test_what_cannot_be_set_is_told_apart_and_counted() -> None:
    """Two names in Chinese do not look the same with pdfLaTeX; a long text is not all codes."""
    assert escape("通义千问一") != escape("通义千问二")
    assert escape("好" * 100).endswith("and 88 more{]}}")


@needs("pdflatex")
def test_pdflatex_compiles_hostile_texts(tmp_path: Path) -> None:
    """Commands, mathematics, Chinese, emoji, combining marks and right-to-left text break nothing."""
    runs = [reported(write_run(tmp_path / "a", small_run(), label="通义 🎧 שלום \\input{x} $"))]
    runs.append(
        reported(write_run(tmp_path / "b", hostile_run(), label="[b] & %", judge={"name": HOSTILE[11]}))
    )
    log = compiled(latex(*runs, appendix=True), tmp_path, "pdflatex")
    assert "LaTeX Warning: There were undefined references" not in log


@needs("pdflatex")
def test_pdflatex_compiles_every_hostile_text_as_a_label(tmp_path: Path) -> None:
    """Each of them in a row, a caption and a note, in English and in Chinese."""
    runs = [
        reported(write_run(tmp_path / f"run-{n}", small_run()[:8], label=text.replace("\ud800", "?") or "x"))
        for n, text in enumerate(HOSTILE)
    ]
    compiled(latex(*runs), tmp_path, "pdflatex")
    compiled(latex(*runs[:3], appendix=True, language="zh"), tmp_path, "pdflatex")


@needs("xelatex")
def test_xelatex_compiles_chinese(tmp_path: Path) -> None:
    """With XeLaTeX the characters themselves are set."""
    run = reported(write_run(tmp_path / "run", hostile_run(), label="通义"))
    compiled(latex(run, appendix=True, language="zh"), tmp_path, "xelatex")


@needs("pdflatex")
def test_the_tables_fit_on_a_page(tmp_path: Path) -> None:
    """The paper's table and the appendix stay within the text of an article, but for a hair."""
    run = reported(write_run(tmp_path / "run", small_run(), label="qwen2-audio-instruct"))
    log = compiled(latex(run, appendix=True), tmp_path, "pdflatex")
    too_wide = [float(points) for points in re.findall(r"Overfull \\hbox \(([\d.]+)pt too wide\)", log)]
    assert max(too_wide, default=0) < 15
