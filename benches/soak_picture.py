"""Draws a soak: rate, latency, memory and file descriptors over time, and what was broken when. For a light page or a dark one.

The figures of the run are a description in the picture and a block in benches/README.md, written together, so that both are of one run.
"""

import html
import textwrap

WIDTH, LEFT, RIGHT, TOP = 760, 56, 12, 46
# A panel's height, that of the words above it, and both with the space to the next.
PANEL, TITLE, GAP = 92, 16, 34
LETTERS_Y = 38
LEGEND_LINE = 15
LEGEND_COLUMNS = 3
# The block of the page that is written here.
BEGIN, END = "<!-- figures of the soak, written by benches/soak_picture.py -->", "<!-- end of the figures -->"
PAGE_COLUMNS = 140
STYLE = """
svg { font: 11px sans-serif; fill: #24292f }
.page { fill: #fbfbfa } .fault { fill: #b03a2e; opacity: .13 } .letter { fill: #b03a2e; font-size: 9px }
.axis { stroke: #767d85; fill: none } .grid { stroke: #767d85; opacity: .25 }
.a { stroke: #2a78b8; fill: none } .b { stroke: #b8722a; fill: none } .bound { stroke: #b03a2e; stroke-dasharray: 4 3 }
.of-a { fill: #2a78b8 } .of-b { fill: #b8722a }
@media (prefers-color-scheme: dark) {
svg { fill: #d7dde3 } .page { fill: #16191d } .fault { fill: #ff8a7a; opacity: .2 } .letter { fill: #ff8a7a }
.axis { stroke: #8d96a0 } .grid { stroke: #8d96a0 } .a { stroke: #6cb6f0 } .b { stroke: #f0b06c } .bound { stroke: #ff8a7a }
.of-a { fill: #6cb6f0 } .of-b { fill: #f0b06c }
}
"""


class Canvas:
    """Panels from top to bottom over one time axis."""

    def __init__(self, duration, panels, legend_lines):
        self.duration = duration
        self.bottom = TOP + panels * (PANEL + GAP) - GAP + TITLE
        self.height = TOP + panels * (PANEL + GAP) + legend_lines * LEGEND_LINE + 8
        self.parts = []

    def x(self, seconds):
        return LEFT + (WIDTH - LEFT - RIGHT) * seconds / self.duration

    def text(self, x, y, words, anchor="start", kind=None):
        of = f' class="{kind}"' if kind else ""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{of}>{html.escape(words)}</text>')

    def line(self, kind, points):
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        self.parts.append(f'<path class="{kind}" d="M{path}"/>')

    def panel(self, number, lines, bound=None, note=""):
        """Each of at most two lines: its words, its points of time and value."""
        top = TOP + number * (PANEL + GAP) + TITLE
        bottom = top + PANEL
        most = ceiling(max([value for _, points in lines for _, value in points] + ([bound] if bound else [])))
        y = lambda value: bottom - PANEL * value / most
        for part in (0, 0.5, 1):
            self.line("axis" if part == 0 else "grid", [(LEFT, y(most * part)), (WIDTH - RIGHT, y(most * part))])
            self.text(LEFT - 5, y(most * part) + 4, f"{most * part:,.4g}" if most < 1000 else f"{most * part:,.0f}", "end")
        if bound:
            self.line("bound", [(LEFT, y(bound)), (WIDTH - RIGHT, y(bound))])
        self.text(WIDTH - RIGHT, top - 6, note, "end")
        place = LEFT
        for kind, (words, points) in zip("ab", lines):
            self.text(place, top - 6, words, kind=f"of-{kind}")
            place += 7 * len(words) + 14
            self.line(kind, [(self.x(at), y(value)) for at, value in points])

    def svg(self, title, description):
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}" height="{self.height}">\n'
            f"<title>{html.escape(title)}</title>\n<desc>{html.escape(description)}</desc>\n<style>{STYLE}</style>\n"
            f'<rect class="page" width="{WIDTH}" height="{self.height}"/>\n' + "\n".join(self.parts) + "\n</svg>\n"
        )


def figures(deployment, duration, deadline_ms, found):
    """The figures of a run in words."""
    requests, late, halves = found["run"]["requests"], found["run"]["late"], found["halves"]
    both = lambda name, form: " and ".join(form.format(value) for value in halves[name])
    return (
        f"{duration} s on Redis ({deployment}) at {found['rate']:,.0f} requests of two counters per second: {requests['sent']:,} requests sent, "
        f"{requests['ok'] + requests['over_limit']:,} answered with OK or OVER_LIMIT, {sum(requests['errors'].values()):,} with an error, "
        f"{sum(requests['unanswered'].values()):,} unanswered, {found['run']['connections_lost']:,} connections lost. "
        f"{late['count']:,} answers came after {deadline_ms} ms. "
        f"The highest values of the first and the second half: {both('rss_mib', '{:.0f}')} MiB of resident memory, "
        f"{both('fds', '{}')} file descriptors, {both('threads', '{}')} threads."
    )


def write_figures(page, words):
    """Replaces the block of a page."""
    with open(page) as file:
        before, rest = file.read().split(BEGIN)
    _, after = rest.split(END)
    with open(page, "w") as file:
        file.write(f"{before}{BEGIN}\n{textwrap.fill(words, PAGE_COLUMNS)}\n{END}{after}")


def draw(path, deployment, duration, deadline_ms, found):
    seconds, samples, faults = found["run"]["timeline"][:duration], found["samples"], found["faults"]
    names = sorted({(fault["letter"], fault["name"]) for fault in faults})
    canvas = Canvas(duration, 4, -(-len(names) // LEGEND_COLUMNS) + 1)
    requests = found["run"]["requests"]
    answered = requests["ok"] + requests["over_limit"]
    title = f"{duration} s on Redis ({deployment}), something broken every ten: {answered:,} of {requests['sent']:,} requests answered"
    canvas.text(8, 18, title)
    for fault in faults:
        x, wide = canvas.x(fault["from"]), max(canvas.x(fault["to"]) - canvas.x(fault["from"]), 1.5)
        place = f'x="{x:.1f}" y="{LETTERS_Y + 3}" width="{wide:.1f}" height="{canvas.bottom - LETTERS_Y - 3}"'
        canvas.parts.append(f'<rect class="fault" {place}/>')
        canvas.text(x, LETTERS_Y, fault["letter"], kind="letter")

    by_second = lambda name: [(number + 0.5, second[name]) for number, second in enumerate(seconds)]
    by_sample = lambda name: [(sample["at"], sample[name]) for sample in samples if sample["at"] <= duration]
    rate = lambda before, after: (after["instead"] - before["instead"]) / (after["at"] - before["at"])
    instead = [(after["at"], rate(before, after)) for before, after in zip(samples, samples[1:]) if after["at"] <= duration]
    canvas.panel(0, [("answers a second", by_second("answered")), ("verdicts by policy, two an answer", instead)])
    note = f"{found['run']['late']['count']:,} after {deadline_ms} ms"
    canvas.panel(1, [("latency, ms: the longest of a second", by_second("max_ms")), ("p99", by_second("p99_ms"))], deadline_ms, note)
    canvas.panel(2, [("resident memory, MiB", by_sample("rss_mib"))])
    canvas.panel(3, [("file descriptors", by_sample("fds")), ("threads", by_sample("threads"))])

    step = 60 if duration > 200 else 10
    for at in range(0, duration + 1, step):
        canvas.text(canvas.x(at), canvas.bottom + 14, f"{at} s", "end" if at == duration else "middle")
    column = (WIDTH - 16) / LEGEND_COLUMNS
    for number, (letter, name) in enumerate(names):
        x, y = 8 + column * (number % LEGEND_COLUMNS), canvas.bottom + 34 + LEGEND_LINE * (number // LEGEND_COLUMNS)
        canvas.text(x, y, letter, kind="letter")
        canvas.text(x + 12, y, name)
    with open(path, "w") as file:
        file.write(canvas.svg(title, figures(deployment, duration, deadline_ms, found)))


def ceiling(value):
    """The next of 1, 2, 3, 4, 5, 6, 8, 10 times a power of ten."""
    power = 1
    while value > power * 10:
        power *= 10
    while value <= power and power > 1e-3:
        power /= 10
    return next(power * factor for factor in (1, 2, 3, 4, 5, 6, 8, 10) if value <= power * factor)
