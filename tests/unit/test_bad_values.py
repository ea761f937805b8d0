"""Invalid crawl options are rejected with our own messages, on the command line and over HTTP."""

import re
from typing import Any

import orjson
import pytest

from shoal.base.errors import InvalidInput
from shoal.base.request_form import fields_of
from shoal.crawl.crawl import CrawlConfig
from shoal.process.crawl_request import read_config
from shoal.serve.endpoint import parse

SEEDS = ["http://a.example/"]
ODD: list[Any] = [None, "", "x" * 20_000, -1, 10**18, 1.5, float("nan"), True, [], [7], [""] * 20_000, {}, {"a": 1}]
FOREIGN = re.compile(r"expected|input should|`\$|valid (string|integer|number|list|dict)", re.I)


def refusals(field: str) -> list[str]:
    """Return the error message for each invalid value of a field."""
    found = []
    for value in ODD:
        for judge in (read_config, lambda values: parse(CrawlConfig, orjson.dumps(values))):
            try:
                judge({"seeds": SEEDS, field: value})
            except InvalidInput as refused:
                found.append(refused.message)
    return found


@pytest.mark.parametrize("field", fields_of(CrawlConfig))
def test_every_refusal_names_the_field_the_problem_and_the_fix_in_our_words(field: str) -> None:
    said = refusals(field)
    assert said
    for message in said:
        assert message.startswith(field), message
        assert re.search(r"; \S.*\.$", message), message
        assert not FOREIGN.search(message), message
        assert len(message) < 400


@pytest.mark.parametrize("pattern", ["(" * 500, "a{1001}", "(", "*", "[z-a]"])
def test_a_pattern_that_no_expression_is_made_of_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidInput, match=r"^include .* is not a regular expression"):
        CrawlConfig.read({"seeds": SEEDS, "include": [pattern]})
