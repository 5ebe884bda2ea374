"""Certificates that cannot be trusted: from the start, and in the middle of a run."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.certificates import certificate, speaks
from tests.faults.conftest import Tally
from tests.faults.driver import IN_FLIGHT, Evaluation, Whole, end_of, evaluation_script, until
from tests.scripted_server import ScriptedServer

pytestmark = [pytest.mark.faults, pytest.mark.kind("tls")]


BAD: dict[str, Sequence[str]] = {
    "self-signed": (),
    "another host's": ("subjectAltName=DNS:elsewhere.example",),
}


@pytest.mark.full(role=["model"])
@pytest.mark.full(kind=["another host's"])
@pytest.mark.parametrize("role", ["model", "judge"])
@pytest.mark.parametrize("kind", BAD)
def test_a_certificate_that_cannot_be_trusted_stops_the_run_before_any_call(
    kind: str, role: str, whole: Whole, folder: Path, tally: Tally
) -> None:
    """The message says that it is the certificate; no request was sent, and the run goes on elsewhere."""
    bad = certificate(folder, "bad", *BAD[kind])
    # That one is trusted, but for another host.
    trusted = {"SSL_CERT_FILE": str(folder / "certificate.pem")} if BAD[kind] else {}
    with ScriptedServer(evaluation_script()) as good, ScriptedServer(tls=speaks(bad)) as untrusted:
        model, judge = (untrusted, good) if role == "model" else (good, untrusted)
        evaluation = Evaluation(model, whole, folder, judge=judge)
        ended = evaluation.run(environ=trusted)
        assert ended.code == {"model": 4, "judge": 5}[role], ended.stderr
        assert "certificate" in ended.stderr
        assert "Traceback" not in ended.stderr
        assert untrusted.requests == []
        evaluation.interrupted(in_flight=0)
        evaluation.server = evaluation.judge = good
        # Nothing was stored of the endpoint that has another address now.
        resumed = evaluation.run()
        assert resumed.code == 0, resumed.stderr
        tally.add("TLS: a certificate that cannot be trusted", evaluation.findings())


@pytest.mark.rounds(full=2, short=1)
def test_a_certificate_that_is_exchanged_in_the_run_stops_it_with_nothing_lost(
    seed: int, whole: Whole, folder: Path, tally: Tally
) -> None:
    """A server that comes back with another certificate gets no request; with the old one the run goes on."""
    good, bad = certificate(folder, "good"), folder / "bad.pem"
    shutil.copy(folder / "certificate.pem", folder / "trusted.pem")
    bad = certificate(folder, "bad")
    trust = {"SSL_CERT_FILE": str(folder / "trusted.pem")}
    with (
        ScriptedServer(evaluation_script()) as model,
        ScriptedServer(evaluation_script(), tls=speaks(good)) as judge,
    ):
        evaluation = Evaluation(model, whole, folder, judge=judge)
        process = evaluation.start(environ=trust)
        assert until(lambda: len(judge.requests) >= 10 + 10 * seed, process)
        judge.stop()
        judge.tls = speaks(bad)
        asked = len(judge.requests)
        judge.start()
        ended = end_of(process)
        assert ended.code == 5, ended.stderr
        assert "certificate" in ended.stderr
        assert len(judge.requests) == asked
        evaluation.interrupted(in_flight=IN_FLIGHT)
        judge.stop()
        judge.tls = speaks(good)
        judge.start()
        resumed = evaluation.run(environ=trust)
        assert resumed.code == 0, resumed.stderr
        tally.add("TLS: a certificate exchanged in the run", evaluation.findings())
