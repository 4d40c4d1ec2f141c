# SPDX-License-Identifier: Apache-2.0
"""Draws which folder includes which, in layers: a folder stands above all that it stands on."""

from __future__ import annotations

BOX_WIDTH, BOX_HEIGHT = 120, 38
GAP_X, GAP_Y, MARGIN = 50, 62, 30


def layers_of(below: dict[str, list[str]]) -> dict[str, int]:
    """The longest way down from each folder; the table lists a folder after what it stands on."""
    layers: dict[str, int] = {}
    for folder, targets in below.items():
        layers[folder] = 1 + max((layers[t] for t in targets if t in layers), default=-1)
    return layers


def places_of(layers: dict[str, int], below: dict[str, list[str]]) -> dict[str, tuple[float, float]]:
    """The middle of each box: rows centred, a row in the order of what its folders stand on."""
    rows: dict[int, list[str]] = {}
    for folder, layer in layers.items():
        rows.setdefault(layer, []).append(folder)
    widest = max(len(row) for row in rows.values())
    width = widest * (BOX_WIDTH + GAP_X) - GAP_X
    places: dict[str, tuple[float, float]] = {}
    for layer in sorted(rows):
        def mean(folder: str) -> float:
            xs = [places[t][0] for t in below[folder] if t in places]
            return sum(xs) / len(xs) if xs else width / 2
        row = sorted(rows[layer], key=mean)
        left = MARGIN + (width - (len(row) * (BOX_WIDTH + GAP_X) - GAP_X)) / 2
        # Rows lean to one side in turn, so that an arrow over two rows does not run through a box.
        lean = (layer % 2) * (BOX_WIDTH + GAP_X) / 3
        y = MARGIN + (len(rows) - 1 - layer) * (BOX_HEIGHT + GAP_Y) + BOX_HEIGHT / 2
        for number, folder in enumerate(row):
            places[folder] = (left + lean + number * (BOX_WIDTH + GAP_X) + BOX_WIDTH / 2, y)
    return places


def draw(below: dict[str, list[str]], includes: set[tuple[str, str]]) -> str:
    """An SVG: a box a folder of `below`, which says what each stands on; an arrow for each pair with includes, dark
    where `below` has the arrow itself, light where it follows from other arrows."""
    if not below:
        return '<svg xmlns="http://www.w3.org/2000/svg" width="10" height="10"/>\n'
    places = places_of(layers_of(below), below)
    lowest = next(iter(below))
    width = max(x for x, _ in places.values()) + BOX_WIDTH / 2 + MARGIN
    height = max(y for _, y in places.values()) + BOX_HEIGHT / 2 + MARGIN + 20
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
           f'height="{height:.0f}" font-family="sans-serif" font-size="14">',
           '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
           'orient="auto"><path d="M0 0L8 4L0 8z" fill="context-stroke"/></marker></defs>',
           f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>']
    for folder, to in sorted(includes):
        if folder not in places or to not in places:
            continue
        (x1, y1), (x2, y2) = places[folder], places[to]
        y1, y2 = y1 + BOX_HEIGHT / 2, y2 - BOX_HEIGHT / 2
        if to in below[folder]:
            style = 'stroke="#204a87" stroke-width="2"'
        elif to == lowest:
            continue  # every folder stands on it: lines that would only hide the others
        else:
            style = 'stroke="#c8c8c8" stroke-width="1"'
        bend = (y2 - y1) / 2
        out.append(f'<path d="M{x1:.0f} {y1:.0f}C{x1:.0f} {y1 + bend:.0f} {x2:.0f} {y2 - bend:.0f} {x2:.0f} '
                   f'{y2:.0f}" fill="none" {style} marker-end="url(#tip)"><title>{folder} includes '
                   f'{to}</title></path>')
    for folder, (x, y) in places.items():
        out.append(f'<rect x="{x - BOX_WIDTH / 2:.0f}" y="{y - BOX_HEIGHT / 2:.0f}" width="{BOX_WIDTH}" '
                   f'height="{BOX_HEIGHT}" rx="6" fill="#eef3fa" stroke="#204a87"/>'
                   f'<text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle">{folder}</text>')
    out.append(f'<text x="{MARGIN}" y="{height - 12:.0f}" font-size="11" fill="#555">dark: an arrow of '
               'src/ARROWS; light: follows from others (all may include ' + lowest + ')</text>')
    return "\n".join([*out, "</svg>"]) + "\n"
