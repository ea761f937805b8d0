"""The command `explain` shows why a URL was skipped, a job waits or a node gets jobs; `robots` checks robots.txt
rules."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from shoal.base.errors import InvalidInput
from shoal.base.settings import Settings
from shoal.base.settings_loader import load
from shoal.base.text import redact_url, shorten
from shoal.base.url import Url, UrlRefusal, canonical, origin
from shoal.cli.api_client import ApiTarget, at, run_on
from shoal.cli.completion import id_argument
from shoal.cli.output import add_show, api_options, facts_of, json_option, print_json, print_object, print_rows
from shoal.cli.root import CommandGroup
from shoal.crawl.scope import SEED_FIX
from shoal.egress import AddressRule, Egress, Limits, endpoint
from shoal.hosts.robots import ANYBODY, PRODUCT, Decision, RobotsState, Rules
from shoal.hosts.robots_cache import RobotsCache, fetch_robots


@click.group(cls=CommandGroup)
def explain() -> None:
    """Explain why a URL or a job waits, was skipped or failed, and why a node gets jobs."""


@explain.command()
@id_argument("crawl_id", "CRAWL")
@click.argument("url", metavar="URL")
@api_options
def url(crawl_id: str, url: str, target: ApiTarget, as_json: bool) -> None:
    """Explain what happened to URL in CRAWL, and why."""
    answer = run_on(target, lambda api: api.get(at("/api/v1/crawls/{}/explain", crawl_id), url=url))
    if answer["reason"] == UrlRefusal.INVALID_URL.code:
        raise InvalidInput("URL", f"{shorten(url)!r} {UrlRefusal.INVALID_URL.problem}", SEED_FIX)
    print_object(answer, as_json=as_json, rows=_rows_of("url"))


def _rows_of(subject: str) -> Callable[[dict[str, Any]], list[tuple[str, str]]]:
    """Return a function that formats an explanation as rows. `subject`: the field with the name of the explained
    object."""

    def rows(answer: dict[str, Any]) -> list[tuple[str, str]]:
        state, reason = answer["state"].replace("_", " "), answer["reason"]
        # The explanation of a node, which is shown below, includes the reason.
        is_told = reason and reason != answer["state"] and subject != "node_id"
        facts = facts_of(answer, without=("crawl_id", subject, "state", "reason", "explanation"))
        head = (subject.removesuffix("_id").capitalize() if subject != "url" else "URL", answer[subject])
        return [head, ("State", f"{state} ({reason})" if is_told else state), ("Why", answer["explanation"]), *facts]

    return rows


for _name, _about in {
    "job": "Explain why a job waits, who runs it, or why it ended.",
    "node": "Explain why a node gets jobs, or why it gets none.",
}.items():
    _id = f"{_name}_id"
    add_show(explain, f"/api/v1/{_name}s/{{}}/explain", id_argument(_id), _about, _rows_of(_id), _name)

DENIED = 1
MOST_SITEMAPS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class RobotsResult:
    """The checked URL and user agent, with the decision and the rules behind it."""

    url: Url
    agent: str
    rules: Rules
    decision: Decision

    @property
    def reason(self) -> str:
        """The stable name of the reason for the decision."""
        if self.rules.state is not RobotsState.FOUND:
            return self.rules.state.value
        if self.rules.group is None:
            return "no_group"
        return "no_rule" if self.decision.rule is None else "rule"

    @property
    def sentence(self) -> str:
        group = "all agents" if self.rules.group == ANYBODY else f"`{self.rules.group}`"
        match self.reason:
            case "unreachable":
                return f"The host's robots.txt could not be fetched, so no URL is allowed. {self.rules.why_none}"
            case "absent":
                return f"The host has no robots.txt, so every URL is allowed. {self.rules.why_none}"
            case "no_group":
                return "The host's robots.txt has no group for this user agent."
            case "no_rule":
                return f"No rule of the group for {group} matches the URL."
            case _:
                assert self.decision.rule is not None
                return f"Line {self.decision.rule.line}, in the group for {group}, decides."


@click.group(cls=CommandGroup)
def robots() -> None:
    """Check the robots.txt of a host."""


@robots.command()
@click.argument("url", metavar="URL")
@click.option("--user-agent", metavar="S", help="Check for this user agent; overrides SHOAL_USER_AGENT.")
@click.option("--store", metavar="URL", help="Use the robots.txt cached in this store, as a crawl would.")
@json_option
def test(url: str, user_agent: str | None, store: str | None, as_json: bool) -> int:
    """Check whether URL may be fetched, and which rule decides. Exit code 0: allowed, 1: not allowed."""
    settings = load({"DATABASE_URL": store}).settings
    agent = settings.egress.user_agent if user_agent is None else _agent(user_agent)
    answer = asyncio.run(_test(settings, _url(url), agent, stored=store is not None))
    if as_json:
        print_json(facts(answer))
    else:
        print_rows(_robots_rows(answer), to_stdout=True)
    return 0 if answer.decision.allowed else DENIED


def _url(text: str) -> Url:
    url = canonical(text)
    if isinstance(url, UrlRefusal):
        raise InvalidInput(
            "URL",
            f"{redact_url(text[:2000])[:200]!r} {url.problem}",
            "write it as http://host/path or https://host/path",
        )
    return url


def _agent(text: str) -> str:
    if not text.isprintable() or not PRODUCT.match(text):
        fix = "start it with a name of letters, `-` or `_`, such as FishBot/1.0"
        raise InvalidInput(
            "--user-agent", f"{text[:200]!r} does not start with a name that a robots.txt can match", fix
        )
    return text


async def _test(settings: Settings, url: Url, agent: str, *, stored: bool) -> RobotsResult:
    # A private address is allowed, because the user of this machine named the host on the command line.
    rule = AddressRule(allow=settings.egress.allow_networks, named=frozenset({endpoint(url)}))
    egress = Egress(rule, Limits.of(settings.egress))
    try:
        rules = await _rules_of(settings, egress, url, agent, stored=stored)
    finally:
        egress.close()
    return RobotsResult(url, agent, rules, rules.decide(url))


async def _rules_of(settings: Settings, egress: Egress, url: Url, agent: str, *, stored: bool) -> Rules:
    if not stored:
        return Rules(await fetch_robots(egress, origin(url), agent), agent, settings.hosts.longest_crawl_delay)
    from shoal.app import opened

    async with opened(settings, existing=True) as app:
        cache = RobotsCache(app.database, egress, agent, settings.hosts, app.clock, app.signals)
        return await cache.rules_of(origin(url))


def facts(answer: RobotsResult) -> dict[str, Any]:
    """Return the response as a JSON object."""
    rules, rule = answer.rules, answer.decision.rule
    sitemaps = rules.sitemaps_at(origin(answer.url))
    return {
        "url": answer.url,
        "allowed": answer.decision.allowed,
        "reason": answer.reason,
        "explanation": answer.sentence,
        "robots_url": f"{origin(answer.url)}/robots.txt",
        "robots_state": rules.state.value,
        "user_agent": answer.agent,
        "token": rules.token,
        "group": rules.group,
        "rule": str(rule) if rule else None,
        "line": rule.line if rule else None,
        "crawl_delay_seconds": rules.delay.total_seconds(),
        "crawl_delay_asked_seconds": rules.asked_delay_seconds,
        "crawl_delay_was_cut": rules.delay_was_cut,
        "sitemaps": [sitemap for sitemap, _ in sitemaps],
        "relative_sitemaps": [written for sitemap, written in sitemaps if sitemap != written],
    }


def _robots_rows(answer: RobotsResult) -> list[tuple[str, str]]:
    rules, rule = answer.rules, answer.decision.rule
    rows = [
        ("URL", answer.url),
        ("Allowed", "yes" if answer.decision.allowed else "no"),
        ("Why", answer.sentence),
        ("Rule", str(rule) if rule else ""),
        ("Agent", f"{rules.token}, from {answer.agent!r}"),
        ("Delay", _delay(rules)),
    ]
    shown = rules.sitemaps_at(origin(answer.url))[:MOST_SITEMAPS_SHOWN]
    rows += [("Sitemap", url if url == written else f"{url} (listed as {written})") for url, written in shown]
    if len(rules.sitemaps) > len(shown):
        rows.append(("Sitemap", f"and {len(rules.sitemaps) - len(shown)} more"))
    return [(name, value) for name, value in rows if value]


def _delay(rules: Rules) -> str:
    if rules.asked_delay_seconds is None:
        return ""
    kept = f"{rules.delay.total_seconds():g} s"
    if not rules.delay_was_cut:
        return kept
    return f"{kept} (the file asks for {rules.asked_delay_seconds:g} s, more than the maximum)"
