"""--ca-file: certificates that vouch for the model's and the judge's servers."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from otoscope.config import TaskConfig, resolve
from otoscope.errors import ConfigError, EndpointError
from tests.certificates import certificate, speaks
from tests.chat_helpers import asked, replied, settings
from tests.scripted_server import ScriptedServer, known_models, scripted_answers
from tests.support import otoscope, write_data


def test_the_file_vouches_for_both_servers(tmp_path: Path) -> None:
    """A whole run against a server that signs itself is done with the file, of which nothing is stored."""
    data = write_data(tmp_path / "data", each=1, tasks=["sound_QA"])
    tls = speaks(certificate(tmp_path, "own"))
    run = str(tmp_path / "run")
    with ScriptedServer(tls=tls) as server:
        assert server.url.startswith("https://")
        flags = ["--model", "m", "--api-url", server.url, "--data", str(data), "--judge-model", "j",
                 "--judge-api-url", server.url, "--judge-api-key", "EMPTY", "--run-dir", run]  # fmt: skip
        refused = otoscope("eval", *flags)
        assert refused.returncode == 4
        assert "the server's certificate cannot be verified" in refused.stderr
        assert "--ca-file FILE" in refused.stderr
        assert server.requests == []
        trusted = str(tmp_path / "certificate.pem")
        done = otoscope("eval", *flags, "--ca-file", trusted)
        assert done.returncode == 0, done.stderr
        another = ["--judge-model", "k", "--judge-api-url", server.url, "--judge-api-key", "EMPTY"]
        judged = otoscope("judge", run, *another, "--ca-file", trusted)
        assert judged.returncode == 0, judged.stderr
    assert trusted not in (tmp_path / "run" / "manifest.json").read_text(encoding="utf-8")


def test_the_command_to_resume_names_the_file(tmp_path: Path) -> None:
    """It is not kept with the run, and is no secret."""
    data = write_data(tmp_path / "data", each=1, tasks=["sound_QA"])
    certificate(tmp_path, "own")
    file = str(tmp_path / "certificate.pem")
    done = otoscope("eval", "--model", "m", "--api-url", "http://127.0.0.1:9/v1", "--data", str(data),
                    "--no-judge", "--run-dir", str(tmp_path / "run"), "--ca-file", file)  # fmt: skip
    assert done.returncode == 4
    assert f"--ca-file {file}" in done.stderr


def test_the_file_stands_in_place_of_the_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is trusted by SSL_CERT_FILE is not, once a file is named."""
    tls = speaks(certificate(tmp_path, "trusted-by-the-system"))
    (tmp_path / "certificate.pem").rename(tmp_path / "system.pem")
    certificate(tmp_path, "another")
    with ScriptedServer(tls=tls) as server:
        with pytest.raises(EndpointError, match="--ca-file"):
            asked(settings(server, ca_file=str(tmp_path / "certificate.pem")))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "system.pem"))
        with pytest.raises(EndpointError, match="--ca-file"):
            asked(settings(server, ca_file=str(tmp_path / "certificate.pem")))
        assert server.requests == []
        replied(settings(server, ca_file=str(tmp_path / "system.pem")))


def test_the_file_vouches_for_a_proxy_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way to the proxy may be encrypted where that to the server is not."""
    tls = speaks(certificate(tmp_path, "proxy"))
    monkeypatch.delenv("no_proxy", raising=False)
    with ScriptedServer(tls=tls) as proxy:
        monkeypatch.setenv("http_proxy", f"https://127.0.0.1:{proxy.port}")
        with pytest.raises(EndpointError, match="certificate"):
            asked(settings("http://model.invalid/v1"))
        assert proxy.requests == []
        with contextlib.suppress(EndpointError):
            asked(settings("http://model.invalid/v1", ca_file=str(tmp_path / "certificate.pem")))
    assert [seen.path for seen in proxy.requests][:1] == ["http://model.invalid/v1/chat/completions"]


def test_the_servers_name_counts(tmp_path: Path) -> None:
    """A certificate that is trusted, but is another host's, is refused."""
    tls = speaks(certificate(tmp_path, "elsewhere", "subjectAltName=DNS:elsewhere.example"))
    with ScriptedServer(tls=tls) as server:
        with pytest.raises(EndpointError, match="certificate"):
            asked(settings(server, ca_file=str(tmp_path / "certificate.pem")))
        assert server.requests == []


def test_the_list_of_models_is_asked_for_in_the_same_way(tmp_path: Path) -> None:
    """Where the model is not known, what the server has is told, over the connection that is trusted."""
    tls = speaks(certificate(tmp_path, "own"))
    script = known_models(scripted_answers(), ["another-model"])
    with (
        ScriptedServer(script, models=["another-model"], tls=tls) as server,
        pytest.raises(EndpointError, match="It serves: another-model"),
    ):
        asked(settings(server, ca_file=str(tmp_path / "certificate.pem")))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot be read: No such file"),
        (b"", "is not PEM"),
        (b"not a certificate", "is not PEM"),
        (b"\x30\x82\x01\x0a\x00", "is not PEM"),
        (b"-----BEGIN CERTIFICATE-----\nbm9uZQ==\n-----END CERTIFICATE-----\n", "is not PEM"),
        ("key.pem", "is not PEM"),
    ],
    ids=lambda value: "" if isinstance(value, bytes | None) else value,
)
def test_a_file_without_certificates_is_refused_at_the_start(
    tmp_path: Path, content: bytes | str | None, why: str
) -> None:
    """Whether it is missing, of another form, or a private key alone."""
    certificate(tmp_path, "own")
    file = tmp_path / (content if isinstance(content, str) else "given.pem")
    if isinstance(content, bytes):
        file.write_bytes(content)
    config = TaskConfig(model="m", api_url="http://127.0.0.1:9/v1", no_judge=True, ca_file=str(file))
    with pytest.raises(ConfigError) as caught:
        resolve(config, {"OTOSCOPE_DATA": "."})
    assert str(caught.value).startswith(f"--ca-file: {file}: {why}")
