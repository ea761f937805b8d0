"""`/llms.txt`: whether a host has one, and whether it follows the format."""

import re
from collections.abc import Iterator
from typing import Final

from shoal.audit.analyzer import Found, Needs
from shoal.audit.codes import BY_ANALYZER
from shoal.audit.site import ProbeAnswer, Site

PATH: Final = "/llms.txt"
_TITLE: Final = re.compile(r"\ufeff?\s*# \S")


class LlmsTxt:
    name = "llms_txt"
    codes = BY_ANALYZER["llms_txt"]
    needs = Needs(probes=(PATH,))

    def analyze(self, site: Site) -> Iterator[Found]:
        answers = [answer for answer in site.probes.values() if answer.url.endswith(PATH)]
        yield Found("llms_txt_missing", urls=[answer.url for answer in answers if answer.status in (404, 410)])
        invalid = [answer for answer in answers if answer.status == 200 and _problem(answer)]
        yield Found(
            "llms_txt_invalid",
            urls=[answer.url for answer in invalid],
            evidence=lambda place: {"problem": _problem(invalid[place])},
        )


def _problem(answer: ProbeAnswer) -> str | None:
    kind = (answer.content_type or "").partition(";")[0].strip().lower()
    if kind not in ("text/plain", "text/markdown", "text/x-markdown", ""):
        return f"is served as {kind}"
    return None if _TITLE.match(answer.text) else "does not begin with a # title"
