"""Pictures, style sheet and script for the site of `shoal demo`: the portraits of the fish and the live tanks."""

from dataclasses import dataclass
from random import Random
from typing import Final


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a kind of fish, in units of the portrait, which is 200 units wide and 120 units high."""

    tall: int  # half the height of the body
    tail: int
    fin: int


def portrait(name: str, hue: int, shape: Shape, *, with_water: bool = True) -> str:
    """Return a picture of a fish as SVG. Its name determines the marks and shifts the colour."""
    random = Random(name)
    hue = (hue + random.randint(-24, 24)) % 360
    back, belly = f"hsl({hue} 62% 46%)", f"hsl({(hue + 30) % 360} 78% 78%)"
    tall, tail, fin = shape.tall, shape.tail, shape.fin
    body = f"M42 60C72 {60 - tall} 138 {60 - tall} 172 60C138 {60 + tall} 72 {60 + tall} 42 60Z"
    bubbles = "".join(
        f'<circle cx="{random.randint(4, 196)}" cy="{random.randint(6, 114)}" r="{random.randint(1, 4)}"/>'
        for _ in range(7)
    )
    water = '<rect width="200" height="120" fill="url(#w)"/>' if with_water else ""
    marks = "".join(_mark(random, place, hue) for place in range(74, 142, random.choice((12, 17, 24))))
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 200 120"><defs>'
        f'<linearGradient id="w" x2="0" y2="1"><stop stop-color="hsl({hue} 55% 93%)"/>'
        f'<stop offset="1" stop-color="hsl({(hue + 200) % 360} 38% 76%)"/></linearGradient>'
        f'<linearGradient id="b" x2="0" y2="1"><stop stop-color="{back}"/><stop offset="1" stop-color="{belly}"/>'
        f'</linearGradient><clipPath id="c"><path d="{body}"/></clipPath></defs>'
        f'{water}<g fill="#fff" opacity=".55">{bubbles}</g>'
        f'<g fill="{back}"><path d="M50 60L14 {60 - tail}Q28 60 14 {60 + tail}Z"/>'
        f'<path d="M84 {64 - tall * 3 // 4}Q106 {58 - tall * 3 // 4 - fin} 132 {64 - tall * 3 // 4}Z"/>'
        f'<path d="M96 {56 + tall * 3 // 4}Q104 {62 + tall * 3 // 4 + fin // 2} 122 {56 + tall * 3 // 4}Z"/></g>'
        f'<path d="{body}" fill="url(#b)"/><g clip-path="url(#c)">{marks}</g>'
        f'<path d="M140 {61 + tall // 6}q-15 -2 -19 9q13 3 19 -9Z" fill="{back}" opacity=".8"/>'
        '<circle cx="155" cy="55" r="5" fill="#fff"/><circle cx="156.500" cy="55" r="2.600" fill="#1c2430"/></svg>'
    )


def _mark(random: Random, x: int, hue: int) -> str:
    """Return a stripe or a dot."""
    colour = f"hsl({(hue + random.choice((0, 170))) % 360} 70% {random.choice((28, 88))}%)"
    if random.random() < 0.5:
        return f'<path d="M{x} 10q-9 50 0 100" stroke="{colour}" stroke-width="5" fill="none" opacity=".5"/>'
    return f'<circle cx="{x}" cy="{random.randint(42, 78)}" r="{random.randint(3, 6)}" fill="{colour}" opacity=".6"/>'


STYLE: Final = """
:root { color-scheme: light dark; --ink: #16323a; --ground: #f4f8f8; --paper: #fff; --line: #d5e3e4; --sea: #0c6170 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e2eef0; --ground: #0d1a1e; --paper: #13252b; --line: #23404a; --sea: #7fd4e2 }
}
* { box-sizing: border-box }
body { margin: 0; font: 17px/1.6 Georgia, "Times New Roman", serif; color: var(--ink); background: var(--ground) }
a { color: var(--sea) }
header { display: flex; flex-wrap: wrap; gap: 8px 24px; justify-content: space-between; padding: 18px 24px;
  background: linear-gradient(100deg, #083742, #0c6170 60%, #1c8b8b) }
header a { color: #fff; text-decoration: none }
header > a { font-size: 22px; letter-spacing: .02em }
header nav { display: flex; gap: 20px; align-items: center; font-size: 16px }
main { max-width: 1020px; margin: 0 auto; padding: 20px 24px 48px }
h1 { font-size: 40px; line-height: 1.15; font-weight: 400; margin: 20px 0 12px }
h2 { font-weight: 400; margin: 40px 0 12px }
p { max-width: 66ch }
.motto { font-size: 21px; font-style: italic }
.seas { display: grid; gap: 16px; grid-template-columns: repeat(auto-fill, minmax(230px, 1fr)) }
.sea { display: block; padding: 22px 18px; border-radius: 12px; color: #fff; text-decoration: none; min-height: 170px;
  background: linear-gradient(160deg, hsl(var(--hue) 45% 38%), hsl(calc(var(--hue) + 40) 48% 24%)) }
.sea b { display: block; font-size: 21px; font-weight: 400; margin-bottom: 6px }
.sea span { font-size: 15px; line-height: 1.45; display: block }
.cards { display: grid; gap: 16px; grid-template-columns: repeat(auto-fill, minmax(160px, 1fr)) }
.card { background: var(--paper); border: 1px solid var(--line); border-radius: 10px; overflow: hidden;
  text-decoration: none; color: inherit }
.card img { display: block; width: 100%; height: auto }
.card span { display: block; padding: 8px 12px; font-size: 15px }
.sea:hover, .card:hover { transform: translateY(-2px); box-shadow: 0 6px 18px #0003 }
.portrait { float: right; width: min(400px, 100%); height: auto; border-radius: 12px; margin: 0 0 16px 24px }
.facts { display: grid; gap: 4px; max-width: 420px }
.facts div { display: flex; border-bottom: 1px solid var(--line); padding: 4px 0 }
.facts dt { width: 120px; opacity: .75 }
.facts dd { margin: 0 }
.facts ~ h2 { clear: both }
.tank { position: relative; height: 340px; border-radius: 14px; overflow: hidden;
  background: linear-gradient(#8fd3dc, #0c4a5c) }
.tank img { position: absolute; width: 130px; animation: swim 14s ease-in-out infinite alternate }
@keyframes swim { from { left: 4% } to { left: calc(96% - 130px) } }
@media (prefers-reduced-motion: reduce) { .tank img { animation: none } }
footer { padding: 24px; text-align: center; font-size: 15px; opacity: .8 }
"""
SCRIPT: Final = """
const tank = JSON.parse(document.getElementById("tank").textContent);
const add = (parent, name, values = {}) => parent.appendChild(Object.assign(document.createElement(name), values));
const app = document.getElementById("app");
add(app, "h1", { textContent: tank.title });
const water = add(app, "div", { className: "tank" });
tank.fish.forEach((fish, place) => {
  const img = add(water, "img", { src: fish.path + "/swimming.svg", alt: fish.name });
  img.style.left = 4 + place * 17 + "%";
  img.style.top = 10 + place * 62 + "px";
  img.style.animationDelay = -place * 5 + "s";
});
add(app, "p", { textContent: tank.about });
const list = add(app, "ul");
tank.fish.forEach((fish) => add(add(list, "li"), "a", { href: fish.path, textContent: fish.name }));
add(add(list, "li"), "a", { href: tank.visitor, textContent: "The visitor" });
"""
