"""Seeds that cannot or may not be crawled: the error names the field and the reason, and nothing is stored."""

import pytest

from shoal.base.errors import InvalidInput
from shoal.process.crawl_request import read_config
from tests.packages.conftest import Crawler

BAD = [
    ("http://127.0.0.1:8080/", "address or port that is not allowed"),
    ("http://10.0.0.1/", "address or port that is not allowed"),
    ("http://172.31.255.255/", "address or port that is not allowed"),
    ("http://169.254.169.254/latest/meta-data/", "address or port that is not allowed"),
    ("http://0/", "address or port that is not allowed"),
    ("http://100.64.0.1/", "address or port that is not allowed"),
    ("http://[::1]/", "address or port that is not allowed"),
    ("http://[::ffff:169.254.169.254]/", "address or port that is not allowed"),
    ("http://[64:ff9b::a9fe:a9fe]/", "address or port that is not allowed"),
    ("http://2130706433/", "address or port that is not allowed"),
    ("http://8.8.8.8:22/", "address or port that is not allowed"),
    ("http://169.254.169.254:8888\\@example.org/", "backslash"),
    ("http://somebody:topsecret@example.org/", "user name or a password"),
    ("http://example.org@127.0.0.1/", "user name or a password"),
    ("file:///etc/passwd", "scheme"),
    ("gopher://example.org/", "scheme"),
    ("javascript:alert(1)", "scheme"),
    ("http://example.org:99999/", "not an absolute"),
    ("http://exa\tmple.org/", "control characters"),
    ("http://example.org/" + "a" * 3000, "longer than the limit"),
    (f"http://{'a' * 64}.org/", "is not valid in DNS"),
    ("http://xn--a.org/", "not an absolute"),
    ("http:///x", "not an absolute"),
    ("//example.org/x", "not an absolute"),
    ("", "not an absolute"),
    ("   ", "not an absolute"),
    ("http://example.org/\x00", "control characters"),
    ("http://example.org/\ud800", "unpaired surrogate"),
]


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_a_bad_seed_is_refused_with_its_reason_and_nothing_is_stored(crawler: Crawler) -> None:
    for seed, reason in BAD:
        with pytest.raises(InvalidInput) as refusal:
            await crawler.app.crawls.submit(read_config({"seeds": ["http://example.org/", seed]}))
        said = str(refusal.value)
        assert (said.startswith("seeds"), reason in said, "topsecret" in said) == (True, True, False), said
        said.encode()  # it can be shown
    assert await crawler.app.crawls.newest() == []
