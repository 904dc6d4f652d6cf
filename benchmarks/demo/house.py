"""House: draws the picture of the whole, docs/images/house.svg; readable in light and in dark.

``python -m benchmarks.demo.house`` writes it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "house.svg"
WIDTH, HEIGHT = 960, 560

STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328; text-anchor: middle }
  .title { font-weight: 600; font-size: 15px }
  .small { font-size: 12px; fill: #57606a }
  .band { fill: #f6f8fa }
  .name { font-weight: 600; fill: #57606a; text-anchor: start }
  .box { fill: #ffffff; stroke: #57606a }
  .ours { fill: #ddf4ff; stroke: #0969da }
  .line { stroke: #57606a; stroke-width: 1.5; fill: none; marker-end: url(#head) }
  .tip { fill: #57606a }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .small, .name { fill: #9da7b3 }
    .band { fill: #161b22 }
    .box { fill: #0d1117; stroke: #8b949e }
    .ours { fill: #0c2d4d; stroke: #58a6ff }
    .line { stroke: #8b949e }
    .tip { fill: #8b949e }
  }
"""


@dataclass(frozen=True)
class Box:
    """A part of the house.

    Args:
        x, y: of its upper left corner.
        title: in bold.
        text: below the title.
        kind: its class in the style.
    """

    x: int
    y: int
    title: str
    text: str
    kind: str = "box"

    width = 180
    height = 60

    def drawn(self) -> str:
        """The rectangle with its two lines."""
        middle = self.x + self.width // 2
        return (
            f'<rect class="{self.kind}" x="{self.x}" y="{self.y}" width="{self.width}" '
            f'height="{self.height}" rx="8"/>\n'
            f'<text class="title" x="{middle}" y="{self.y + 26}">{self.title}</text>\n'
            f'<text class="small" x="{middle}" y="{self.y + 46}">{self.text}</text>'
        )


BANDS = ((20, 200, "an episode"), (240, 130, "a step"), (390, 150, "what stays"))
BOXES = (
    Box(40, 60, "environment", "acts on messages"),
    Box(270, 60, "renderer", "messages to tokens"),
    Box(520, 60, "engine", "samples tokens", "ours"),
    Box(750, 60, "parser", "tokens to an action"),
    Box(40, 145, "tools and sandbox", "run the calls"),
    Box(750, 145, "rubric", "rewards a trajectory"),
    Box(750, 280, "groups", "rollouts of one task"),
    Box(520, 280, "batch", "credit, packed rows"),
    Box(270, 280, "roles", "actor, critic, reference", "ours"),
    Box(40, 280, "weight sync", "version + 1"),
    Box(750, 440, "run directory", "every token, its origin"),
    Box(520, 440, "viewer", "episodes, blame, health"),
    Box(270, 440, "checkpoints", "resume to the last bit"),
    Box(40, 440, "model folder", "Hugging Face's layout"),
)
# Points of a line, and what is written beside it: text, x, y.
LINES: tuple[tuple[str, tuple[str, int, int] | None], ...] = (
    ("M220 90 H266", None),
    ("M450 90 H516", ("ids", 483, 82)),
    ("M700 90 H746", ("ids", 723, 82)),
    ("M840 60 V38 H130 V56", ("the action comes back, turn by turn", 485, 32)),
    ("M130 120 V141", None),
    ("M840 120 V141", None),
    ("M840 205 V276", None),
    ("M750 310 H704", None),
    ("M520 310 H454", None),
    ("M270 310 H224", None),
    ("M130 280 V225 H610 V124", ("weights", 400, 218)),
    ("M840 340 V436", None),
    ("M750 470 H704", None),
    ("M360 340 V436", None),
    ("M270 470 H224", None),
)


def drawn() -> str:
    """The picture as SVG."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-label="An episode, a step, and what stays of them">',
        f"<style>{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path class="tip" d="M0 0 L8 4 L0 8 z"/></marker></defs>',
    ]
    for y, height, name in BANDS:
        parts.append(
            f'<rect class="band" x="10" y="{y}" width="{WIDTH - 20}" height="{height}" rx="12"/>'
        )
        parts.append(f'<text class="name" x="24" y="{y + 20}">{name}</text>')
    for points, beside in LINES:
        parts.append(f'<path class="line" d="{points}"/>')
        if beside is not None:
            text, x, y = beside
            parts.append(f'<text class="small" x="{x}" y="{y}">{text}</text>')
    parts += [box.drawn() for box in BOXES]
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")
