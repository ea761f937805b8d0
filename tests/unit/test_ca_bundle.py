"""The certificate authorities that are trusted."""

from pathlib import Path

from shoal.egress.curl import find_ca_file


def test_the_file_that_the_environment_names_comes_first(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.touch()
    assert find_ca_file({"SSL_CERT_FILE": "/named.pem"}, (str(bundle),)) == "/named.pem"


def test_the_first_bundle_that_exists_is_taken(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.touch()
    assert find_ca_file({"SSL_CERT_FILE": ""}, (str(tmp_path / "absent.pem"), str(bundle))) == str(bundle)
