"""A site to crawl, written as files: a tree of pages with additional links across the tree. For the same number of
pages, the files are always identical.

Every page has about 26 KB of text and markup and 60 links: to its children, to random pages, to itself, to other hosts
(none of which exist), to resources that are not pages, and to a folder that robots.txt forbids. Every page can be
reached.
"""

import random
from collections.abc import Iterator
from pathlib import Path

CHILDREN = 8
CROSS = 22  # links to random pages
AGAIN = 10  # links that repeat earlier links on the page
OUTSIDE = 18  # links to other hosts
FOLDERS = 40
FORBIDDEN = 3  # pages that robots.txt forbids
SECTIONS = 22  # sections of about 140 words each
SYLLABLES = ("ba", "co", "de", "fi", "gu", "la", "mo", "ne", "pi", "ru", "sa", "to", "ve", "wi", "zu")

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Page {number}: {title}</title>
<meta name="description" content="{description}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="canonical" href="{base}{path}">
<link rel="stylesheet" href="/site.css">
<script>document.documentElement.dataset.menu = "<a href='/from-a-script.html'>not a link</a>";</script>
</head>
<body>
<header><nav><ul>{outside}</ul></nav></header>
<main>
<h1>{title}</h1>
{body}
</main>
<!-- <a href="/from-a-comment.html">not a link</a> -->
<footer><p>Page {number} of {count}. <a href="/private/{forbidden}.html">For nobody</a> <a href="#top">Up</a>
<a href="mailto:nobody@example.invalid">Write</a></p></footer>
</body>
</html>
"""

OUTWARD = '<li><a href="https://site{place}.example.invalid/{some}?from={number}" rel="noopener">Elsewhere</a></li>'
SECTION = '<section class="card"><h2>{heading}</h2><p>{text} {links} <em>{name}</em></p></section>'


def path_of(number: int) -> str:
    return f"/f{number % FOLDERS}/page{number}.html" if number else "/"


def write(folder: Path, count: int, base: str) -> None:
    """Write the site that is served at `base` into an empty folder. A marker file is written last, when the site is
    complete."""
    for name in ["private", *(f"f{number}" for number in range(FOLDERS))]:
        (folder / name).mkdir(parents=True)
    for number, text in enumerate(pages(count, base)):
        (folder / (path_of(number)[1:] or "index.html")).write_text(text, "utf-8")
    for number in range(FORBIDDEN):
        (folder / "private" / f"{number}.html").write_text("<title>Private</title><a href='/'>home</a>")
    (folder / "robots.txt").write_text("User-agent: *\nDisallow: /private/\n")
    (folder / "complete").touch()


def pages(count: int, base: str) -> Iterator[str]:
    chance = random.Random(count)
    words = ["".join(chance.choices(SYLLABLES, k=chance.randint(1, 4))) for _ in range(900)]
    sentences = [" ".join(chance.choices(words, k=20)).capitalize() + "." for _ in range(2_000)]
    for number in range(count):
        yield _page(number, count, base, sentences, chance)


def _page(number: int, count: int, base: str, sentences: list[str], chance: random.Random) -> str:
    links = _links(number, count, base, chance)
    sections = [_section(f"{number}.{place}", links[place::SECTIONS], sentences, chance) for place in range(SECTIONS)]
    return PAGE.format(
        number=number,
        count=count,
        base=base,
        path=path_of(number),
        title=chance.choice(sentences)[:60],
        description=chance.choice(sentences),
        outside="".join(
            OUTWARD.format(place=place, some=chance.randrange(10**6), number=number) for place in range(OUTSIDE)
        ),
        body="\n".join(sections),
        forbidden=chance.randrange(FORBIDDEN),
    )


def _section(name: str, links: list[str], sentences: list[str], chance: random.Random) -> str:
    inside = " ".join(f'<a href="{href}" class="link">{chance.choice(sentences)[:24]}</a>,' for href in links)
    text = " ".join(chance.choices(sentences, k=7))
    return SECTION.format(name=name, heading=chance.choice(sentences)[:40], text=text, links=inside)


def _links(number: int, count: int, base: str, chance: random.Random) -> list[str]:
    """Return addresses in all the forms in which sites write them."""
    children = range(number * CHILDREN + 1, min(count, (number + 1) * CHILDREN + 1))
    targets = [*children, *(chance.randrange(count) for _ in range(CROSS + CHILDREN - len(children)))]
    targets += chance.choices(targets, k=AGAIN)
    chance.shuffle(targets)
    forms = ("{base}{path}", "{path}", "{path}#part", "{up}{path}", "{path}")
    up = ".." if number else "."
    return [forms[place % 5].format(base=base, path=path_of(target), up=up) for place, target in enumerate(targets)]
