"""`python -m bench [NAME ...]`: run benchmarks, print their results, and write them to files on request."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from bench.report import Report, machine, write_json, write_page

ROOT = Path(__file__).resolve().parent.parent
NAMES = {
    "startup": "the cost of starting, and the time until the first page is requested",
    "crawl": "CPU per page compared with other crawlers, memory, and two cores",
    "content": "main text and Markdown of articles: scores and time, compared with trafilatura (needs BENCH_ARTICLES)",
    "scrape": "the time to get the content of one page over HTTP, compared with the time of the fetch",
    "frontier": "add, take and settle at 100 k, 1 M and 5 M URLs, and bytes per URL",
    "queue": "no-op jobs through a worker, batches, pick-up time, 1 M waiting jobs, killed workers, and other queues",
    "hosts": "policies on a hundred hosts, with equal priorities and with priorities that differ by host",
    "console": "size and time of pages, lists of 100 k crawls and 1 M pages, and fifty live viewers",
    "loop": "the longest callback of the event loop while a controller serves requests at their limits",
    "render": "pages rendered per second compared with Playwright and Crawlee, memory, and auto on a static site",
    "fleet": "sessions and dispatch decisions with up to 10 k nodes, and the queue with dispatch on and off",
    "audit": "all analyzers over 100 k and 1 M pages with 60 links each, and the diff of two crawls",
    "compat": "single calls of the persistent URL queue, compared with the class that it replaces",
    "plan": "a scheduler's pass over 1 M policies, delivery of events to a receiver, and bots that pull and push",
}


def main() -> int:
    options = parse(sys.argv[1:])
    print(f"# {', '.join(machine())}\n", flush=True)
    everything = [name for name in NAMES if name != "content"]  # it needs data that is not in the repository
    reports = [measured(name, options) for name in options.names or everything]
    if options.json:
        write_json(reports, options.json)
    if options.write:
        write_page(reports, ROOT / "docs" / "benchmarks.md")
    return 0


def measured(name: str, options: Namespace) -> Report:
    run: Callable[[Namespace], Report] = import_module(f"bench.{name}").run
    report = run(options)
    print(report.markdown(), flush=True)
    return report


def parse(arguments: list[str]) -> Namespace:
    parser = ArgumentParser("python -m bench", epilog="; ".join(f"{name}: {says}" for name, says in NAMES.items()))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)}; default: all")
    parser.add_argument("--short", action="store_true", help="run only the smallest size, once; takes seconds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all results to FILE")
    parser.add_argument("--write", action="store_true", help="put the results into docs/benchmarks.md")
    parser.add_argument("--reps", type=int, metavar="N", help="number of runs whose median is reported (3; --short: 1)")
    crawl = parser.add_argument_group("crawl")
    crawl.add_argument("--pages", type=number, metavar="N", help="pages of the site (5k)")
    crawl.add_argument(
        "--many-pages", type=number, metavar="N", help="pages of the large site (100k; --short: no such site)"
    )
    crawl.add_argument("--concurrency", type=int, default=32, metavar="N", help="number of fetches in flight (32)")
    crawl.add_argument("--alone", action="store_true", help="do not measure other crawlers")
    frontier = parser.add_argument_group("frontier")
    frontier.add_argument("--sizes", type=numbers, metavar="N,N", help="numbers of URLs (100k,1m,5m; --short: 100k)")
    frontier.add_argument(
        "--drivers", type=words, default=["sqlite", "postgres", "redis"], metavar="D,D", help="which stores"
    )
    frontier.add_argument(
        "--rounds", type=int, default=100, metavar="N", help="commits of each kind at each size (100)"
    )
    queue = parser.add_argument_group("queue")
    queue.add_argument("--queues", type=Path, metavar="DIR", help="also compare with other queues, with DIR/compare.py")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names).difference(NAMES))
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]}: choose from {', '.join(NAMES)}")
    return options


def number(text: str) -> int:
    """Read a number such as `20000`, `20k` or `1m`."""
    scale = {"k": 1_000, "m": 1_000_000}.get(text[-1:].lower(), 1)
    return int(float(text[:-1]) * scale) if scale > 1 else int(text)


def numbers(text: str) -> list[int]:
    return [number(part) for part in text.split(",")]


def words(text: str) -> list[str]:
    return text.split(",")


if __name__ == "__main__":
    sys.exit(main())
