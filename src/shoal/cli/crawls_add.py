"""`shoal crawls add`: start a crawl on the workers, with the options of `shoal crawl` plus project, labels and
priority."""

from collections.abc import Sequence
from typing import Any

import click

from shoal.base.errors import InvalidInput, UsageError
from shoal.cli.api_client import ApiTarget, run_on, with_api_target
from shoal.cli.crawls_follow import at_its_end
from shoal.cli.options import add_flags, added_flag_of, added_values
from shoal.cli.output import print_json
from shoal.observe.logs import note
from shoal.process.crawl_request import read_config

CRAWLS = "/api/v1/crawls"


@click.command(epilog="Example: shoal crawls add https://example.com/ --max-pages 500 --project shop --wait")
@click.argument("urls", nargs=-1, metavar="URL...")
@add_flags
@click.option(
    "--hold", is_flag=True, help="Store the crawl without starting it; start it with `shoal crawls start ID`."
)
@click.option("--wait", is_flag=True, help="Wait until the crawl ends or is paused, like `shoal crawls wait`.")
@with_api_target
@click.option(
    "--json", "as_json", is_flag=True, help="Print the crawl, or with --wait its summary, as one JSON object."
)
def add(urls: Sequence[str], hold: bool, wait: bool, target: ApiTarget, as_json: bool, **options: Any) -> int:
    """Start a crawl on the workers and print its id. To crawl in this process, use `shoal crawl`."""
    if not urls:
        raise UsageError("No URL given", "give at least one URL to start from")
    if hold and wait:
        raise UsageError("--hold and --wait cannot be combined", "leave one of them out")
    given = added_values(options)
    wanted = read_config({"seeds": list(urls), **given}, added_flag_of).plain()
    body = {name: wanted[name] for name in ("seeds", *given)} | ({"start": False} if hold else {})
    try:
        crawl = run_on(target, lambda api: api.post(CRAWLS, body), existing=False)
    except InvalidInput as error:
        raise error.called(added_flag_of) from None
    if wait:
        note(f"{crawl['id']} is {crawl['state']}.")
        return at_its_end(target, crawl["id"], as_json)
    if as_json:
        print_json(crawl)
    else:
        note(f"The crawl is {crawl['state']}; follow it with `{target.command('crawls', 'watch', crawl['id'])}`.")
        print(crawl["id"], flush=True)
    return 0
