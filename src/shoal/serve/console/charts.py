"""SVG charts drawn on the server: stacked columns, rates over time, a bar of shares, a treemap, a timeline.

Drawings are stretched to the available width. Therefore they contain no text; labels are HTML around the drawing.
Colours come from the style sheet, by class. Each mark has a title that is shown on hover and read by screen readers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from markupsafe import Markup

from shoal.serve.console.format import Formats

WIDTH: Final = 1000.0  # width of a drawing in its own units, before it is stretched
GAP: Final = 0.22  # share of a column's width that stays empty
MOST_LABELS: Final = 8
HEIGHT: Final = 140  # height of a chart with axes, in pixels as in the style sheet
TICKS: Final = (1.0, 0.75, 0.5, 0.25)  # labels of the time axis, as parts of its length; "now" follows at the end
TEXT_HEIGHT: Final = 16.0
CHARACTER: Final = 6.6  # average width of a character in a treemap


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a column or a bar: a colour class, a value, and the text shown on hover."""

    kind: str
    value: float
    title: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a chart; its parts are ordered from the bottom up."""

    label: str
    parts: tuple[Part, ...]
    title: str = ""

    @property
    def total(self) -> float:
        return sum(part.value for part in self.parts)


@dataclass(frozen=True, slots=True)
class Cell:
    """A rectangle of a treemap. `short` is its label where there is little room."""

    label: str
    value: float
    kind: str = ""
    title: str = ""
    href: str = ""
    short: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """A time span in a timeline; `row` is the number of its line."""

    start: int
    end: int
    row: int = 0
    kind: str = ""
    title: str = ""


ROUND: Final = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
SPIKE: Final = 3.0  # a spike is higher than this multiple of nearly all values
NEARLY_ALL: Final = 0.95
FEWEST: Final = 20  # minimum number of values for which spikes are detected
CUT_WIDTH, CUT_HEIGHT = 5.0, 4.0


def scale_of(values: Sequence[float]) -> float:
    """Return the value at the top of a chart: a round value above the highest value. If the highest value is a spike
    that would flatten the rest, return a round value above nearly all values."""
    known = sorted(value for value in values if value > 0)
    if not known:
        return 1.0
    usual, highest = known[int(NEARLY_ALL * (len(known) - 1))], known[-1]
    top = usual * 1.25 if len(known) >= FEWEST and highest > SPIKE * usual else highest
    power = 10.0 ** math.floor(math.log10(top))
    return next(step for step in ROUND if step * power >= top * (1 - 1e-9)) * power


def columns(data: Sequence[Column], label: str, formats: Formats, height: int = HEIGHT) -> Markup:
    """Draw stacked columns with an axis and labels; if there are many columns, only some have a label. Columns above
    the scale are cut and marked."""
    most = scale_of([column.total for column in data])
    step = WIDTH / max(1, len(data))
    marks = []
    for place, column in enumerate(data):
        y = float(height)
        shapes = []
        unit = height / max(most, column.total)  # the parts of a cut column keep their proportions
        for part in column.parts:
            size = part.value * unit
            if size <= 0:
                continue
            y -= size
            shapes.append(
                Markup(
                    '<rect class="{}" x="{:.1f}" y="{:.2f}" width="{:.1f}" height="{:.2f}"><title>{}</title></rect>'
                ).format(
                    part.kind, place * step + step * GAP / 2, y, step * (1 - GAP), size, part.title or column.title
                )
            )
        if column.total > most:
            shapes.append(_cut(place * step + step * GAP / 2, step * (1 - GAP)))
        marks.append(Markup("").join(shapes))
    every = -(-len(data) // MOST_LABELS) or 1
    labels = Markup("").join(
        Markup("<span>{}</span>").format(column.label if place % every == 0 else "")
        for place, column in enumerate(data)
    )
    return _with_axes(most, formats, Markup("").join(marks), height, label, "chart-labels", labels)


def over_time(values: Sequence[float], seconds: float, label: str, formats: Formats, height: int = HEIGHT) -> Markup:
    """Draw the values of the last `seconds` as a line over an area, with axes. Values above the scale are cut and
    marked."""
    most, step = scale_of(values), WIDTH / max(1, len(values) - 1)
    cuts = [_cut(min(place * step, WIDTH - CUT_WIDTH), CUT_WIDTH) for place, value in enumerate(values) if value > most]
    points = [(place * step, height - min(value, most) / most * (height - 2)) for place, value in enumerate(values)]
    times = [formats.ago(formats.now - int(seconds * part * 1e6)) if seconds * part >= 10 else "" for part in TICKS]
    times = ["" if place and time == times[place - 1] else time for place, time in enumerate(times)]
    below = Markup("").join(map(Markup("<span>{}</span>").format, [*times, formats.language("now")]))
    marks = _area(points, height) + Markup("").join(cuts)
    return _with_axes(most, formats, marks, height, label, "chart-ends", below)


def _cut(x: float, width: float) -> Markup:
    """Draw the mark at the top of a chart for a value above the scale."""
    return Markup('<rect class="cut" x="{:.1f}" y="0" width="{:.1f}" height="{:.0f}"/>').format(x, width, CUT_HEIGHT)


def _with_axes(
    most: float, formats: Formats, marks: Markup, height: int, label: str, kind: str, below: Markup
) -> Markup:
    """Draw marks on a grid, with the levels of the scale beside it and labels below."""
    grid = Markup('<path class="level" d="M0 1H{0:.0f}M0 {1:.0f}H{0:.0f}"/>').format(WIDTH, height / 2)
    levels = (formats.short(most), formats.short(most / 2), "0")
    names = Markup("").join(map(Markup("<span>{}</span>").format, levels))
    return Markup(
        '<div class="chart scaled"><div class="levels" aria-hidden="true">{}</div>'
        '<div>{}<div class="{}">{}</div></div></div>'
    ).format(names, _svg(grid + marks, height, label), kind, below)


def sparkline(values: Sequence[float], label: str, height: int = 24) -> Markup:
    """Draw a small line without labels; values above the scale are cut."""
    most = scale_of(values)
    step = WIDTH / max(1, len(values) - 1)
    points = [(place * step, height - 1 - min(value, most) / most * (height - 2)) for place, value in enumerate(values)]
    return Markup('<span class="spark">{}</span>').format(_svg(_area(points, height), height, label))


def shares(parts: Sequence[Part], label: str, height: int = 8) -> Markup:
    """Draw a bar that is divided by shares."""
    total = sum(part.value for part in parts)
    x, marks = 0.0, []
    for part in parts:
        if part.value <= 0:
            continue
        size = part.value / total * WIDTH
        marks.append(
            Markup('<rect class="{}" x="{:.2f}" y="0" width="{:.2f}" height="{}"><title>{}</title></rect>').format(
                part.kind, x, size, height, part.title
            )
        )
        x += size
    return Markup('<span class="shares">{}</span>').format(_svg(Markup("").join(marks), height, label))


def progress(share: float | None, label: str, height: int = 6) -> Markup:
    """Draw a progress bar; it is empty if the share is unknown."""
    return _progress(round(1000 * min(1.0, max(0.0, share or 0.0)), 1), label, height)


@lru_cache(maxsize=1000)  # every row of a list has a bar, and few bars change between two refreshes
def _progress(done: float, label: str, height: int) -> Markup:
    mark = Markup('<rect class="done" x="0" y="0" width="{:.1f}" height="{}"/>').format(done, height)
    return Markup('<span class="shares">{}</span>').format(_svg(mark, height, label))


def timeline(spans: Sequence[Span], label: str, formats: Formats) -> Markup:
    """Draw time spans, one line per row, with the time at both ends."""
    start, end = min(span.start for span in spans), max(span.end for span in spans)
    length, height = max(end - start, 1), 14
    marks = Markup("").join(
        Markup('<rect class="{}" x="{:.2f}" y="{}" width="{:.2f}" height="{}"><title>{}</title></rect>').format(
            span.kind,
            (span.start - start) / length * WIDTH,
            span.row * height + 2,
            max(3.0, (span.end - span.start) / length * WIDTH),
            height - 4,
            span.title,
        )
        for span in spans
    )
    drawing = _svg(marks, (max(span.row for span in spans) + 1) * height, label)
    return Markup('<div class="chart">{}<div class="chart-ends"><span>{}</span><span>{}</span></div></div>').format(
        drawing, formats.exact(start), formats.exact(end)
    )


def treemap(cells: Sequence[Cell], label: str) -> Markup:
    """Draw rectangles with areas in proportion to their values, in a wide and a narrow form; the style sheet shows one
    of them."""
    ordered = sorted((cell for cell in cells if cell.value > 0), key=lambda cell: -cell.value)
    wide = _treemap(ordered, 960, 320, label)
    narrow = _treemap(ordered, 340, 460, label)
    return Markup('<div class="treemap wide">{}</div><div class="treemap narrow">{}</div>').format(wide, narrow)


def _treemap(cells: Sequence[Cell], width: float, height: float, label: str) -> Markup:
    marks = []
    for cell, (x, y, w, h) in zip(cells, squarify([cell.value for cell in cells], width, height), strict=True):
        room = int((w - 12) / CHARACTER)
        text = cell.label if len(cell.label) <= room else cell.short or cell.label
        text = text if len(text) <= room else f"{text[: room - 1]}…" if room > 3 else ""
        shown = Markup('<text x="{:.1f}" y="{:.1f}">{}</text>').format(x + 6, y + 17, text)
        mark = Markup(
            '<g><title>{}</title><rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="3"/>{}</g>'
        ).format(
            cell.title, cell.kind, x, y, max(0.0, w - 2), max(0.0, h - 2), shown if text and h > TEXT_HEIGHT + 4 else ""
        )
        marks.append(Markup('<a href="{}">{}</a>').format(cell.href, mark) if cell.href else mark)
    role = "group" if any(cell.href for cell in cells) else "img"  # an image must not contain links
    return Markup('<svg viewBox="0 0 {:.0f} {:.0f}" role="{}" aria-label="{}">{}</svg>').format(
        width, height, role, label, Markup("").join(marks)
    )


def squarify(values: Sequence[float], width: float, height: float) -> list[tuple[float, float, float, float]]:
    """Return a rectangle `(x, y, width, height)` for each value, largest first. The rectangles are as close to squares
    as possible."""
    total = sum(values)
    if not total:
        return []
    areas = [value / total * width * height for value in values]
    x = y = 0.0
    found: list[tuple[float, float, float, float]] = []
    while areas:
        side = min(width, height) or 1e-9
        count = 1
        while count < len(areas) and _worst(areas[: count + 1], side) <= _worst(areas[:count], side):
            count += 1
        row, areas = areas[:count], areas[count:]
        thick = sum(row) / side
        place = 0.0
        for area in row:
            long = area / thick if thick else 0.0
            found.append((x, y + place, thick, long) if width >= height else (x + place, y, long, thick))
            place += long
        if width >= height:
            x, width = x + thick, width - thick
        else:
            y, height = y + thick, height - thick
    return found


def _worst(row: Sequence[float], side: float) -> float:
    """Return the worst aspect ratio in a row of areas along a side."""
    total = sum(row)
    return max(side**2 * max(row) / total**2, total**2 / (side**2 * max(min(row), 1e-9)))


def _area(points: Sequence[tuple[float, float]], height: float) -> Markup:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    first, last = points[0][0], points[-1][0]
    area = Markup('<polygon class="area" points="{:.1f},{} {} {:.1f},{}"/>').format(first, height, path, last, height)
    return area + Markup('<polyline class="line" points="{}"/>').format(path)


def _svg(marks: Markup, height: float, label: str) -> Markup:
    return Markup(
        '<svg viewBox="0 0 {:.0f} {:.0f}" height="{:.0f}" preserveAspectRatio="none" role="img" aria-label="{}">'
        "{}</svg>"
    ).format(WIDTH, height, height, label, marks)
