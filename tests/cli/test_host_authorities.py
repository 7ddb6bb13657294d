"""The host's authorities are trusted on each distribution, and what a person has set stays."""

import os
import subprocess
import sys

import pytest

from gpuwarden_cli.host_authorities import FILES, use_host_authorities


def test_where_openssl_finds_certificates_by_itself_nothing_is_set(tmp_path) -> None:
    folder, file = tmp_path / "certs", tmp_path / "bundle.pem"
    folder.mkdir()
    (folder / "4f06f81d.0").touch()
    file.touch()
    environ: dict[str, str] = {}
    use_host_authorities(environ, folder=folder, files=[file])
    assert environ == {}


@pytest.mark.parametrize("path", FILES)
def test_elsewhere_the_distribution_s_file_is_set(tmp_path, path) -> None:
    files = [tmp_path / one.relative_to("/") for one in FILES]
    there = tmp_path / path.relative_to("/")
    there.parent.mkdir(parents=True)
    there.touch()
    environ: dict[str, str] = {}
    use_host_authorities(environ, folder=tmp_path / "etc/ssl/certs", files=files)
    assert environ == {"SSL_CERT_FILE": str(there)}


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "SSL_CERT_DIR"])
def test_what_a_person_has_set_stays(tmp_path, name) -> None:
    (tmp_path / "bundle.pem").touch()
    environ = {name: "/mine"}
    use_host_authorities(environ, folder=tmp_path / "none", files=[tmp_path / "bundle.pem"])
    assert environ == {name: "/mine"}


def test_a_context_that_is_made_afterwards_trusts_them(tmp_path) -> None:
    trustme = pytest.importorskip("trustme")
    trustme.CA().cert_pem.write_to_path(tmp_path / "bundle.pem")
    code = (
        "import pathlib, ssl; from gpuwarden_cli.host_authorities import use_host_authorities\n"
        f"use_host_authorities(folder=pathlib.Path({str(tmp_path / 'none')!r}),"
        f" files=[pathlib.Path({str(tmp_path / 'bundle.pem')!r})])\n"
        "print(len(ssl.create_default_context().get_ca_certs()))"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith("SSL_CERT_")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    )
    assert done.stdout == "1\n"
