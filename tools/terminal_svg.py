"""Records a command in a terminal as an animated SVG: python tools/terminal_svg.py OUT.svg COMMAND ARGUMENT…"""
import fcntl
import os
import pty
import re
import shlex
import struct
import sys
import termios
import time
from html import escape

COLUMNS, ROWS = 100, 24
SECONDS, REST, FRAME = 12, 6, 0.12  # of the recording when it is played, of its last picture, of any other picture at least
LINE, LEFT, TOP = 18, 14, 40  # pixels


def record(command):
    """(seconds since the start, text) of each piece of output, and the exit status."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", LC_ALL="C.UTF-8")
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    start, pieces, rest = time.monotonic(), [], b""
    while True:
        try:
            rest += os.read(terminal, 65536)
        except OSError:  # the command has ended
            return pieces, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        try:
            pieces.append((time.monotonic() - start, rest.decode()))
            rest = b""
        except UnicodeDecodeError:  # half a character
            pass


def draw(pieces):
    """(line number, text, first second, last second or None) of all that was drawn, and (second, number of lines)."""
    lines, column, drawn, heights = {0: ("", 0.0)}, 0, [], [(0.0, 1)]
    for now, piece in pieces:
        before = dict(lines)
        for part in re.findall(r"\x1b\[[\d;?]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", piece):
            row = len(lines) - 1
            text = lines[row][0]
            if part == "\n":
                lines[row + 1], column = ("", now), 0
            elif part == "\r":
                column = 0
            elif part == "\x1b[K":
                lines[row] = (text[:column], now)
            elif not part.startswith("\x1b"):
                text = text[:column].ljust(column) + part + text[column + len(part):]
                column += len(part)
                while column > COLUMNS:
                    lines[row], text, column, row = (text[:COLUMNS], now), text[COLUMNS:], column - COLUMNS, row + 1
                lines[row] = (text, now)
        for row, (text, since) in before.items():
            if lines[row][0] != text:
                drawn.append((row, text, since, now))
            else:
                lines[row] = (text, since)
        heights.append((now, len(lines)))
    return drawn + [(row, text, since, None) for row, (text, since) in lines.items()], heights


def as_svg(title, pieces):
    command = [(0.0, f"$ {title}\r\n")]
    end = pieces[-1][0]
    frames = {}
    for seconds, text in pieces:
        frame = 1 + FRAME * round(seconds / end * (SECONDS - 1) / FRAME)
        frames[frame] = frames.get(frame, "") + text
    drawn, heights = draw(command + list(frames.items()))
    shown = [each for each in drawn if each[1].strip() and each[2] != each[3]]
    count = heights[-1][1] - (not any(row == heights[-1][1] - 1 for row, *_ in shown))
    rows = min(ROWS, count)
    width, height = LEFT * 2 + round(COLUMNS * 7.83), TOP + rows * LINE + 12
    total = SECONDS + REST

    def percent(second):
        return f"{100 * second / total:.2f}%"

    style, texts = [], []
    for i, (row, text, since, until) in enumerate(shown):
        steps = "" if since == 0 else f"0%{{opacity:0}}{percent(since)}{{opacity:1}}"
        if until is not None:
            steps = f"0%{{opacity:0}}{percent(since)}{{opacity:1}}{percent(until)}{{opacity:0}}"
        if steps:
            style.append(f"@keyframes k{i}{{{steps}}}#t{i}{{animation-name:k{i}}}")
        hidden = "" if until is None else ' opacity="0"'
        texts.append(f'<text id="t{i}" y="{row * LINE}"{hidden} xml:space="preserve">{escape(text)}</text>')
    offsets = [(second, max(0, min(lines, count) - rows) * LINE) for second, lines in heights]
    moves = "".join(f"{percent(second)}{{transform:translateY(-{offset}px)}}" for (second, offset), (_, last) in zip(offsets[1:], offsets) if offset != last)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">
<title>{escape(title)}</title>
<style>
text{{font:13px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#e6edf3;white-space:pre}}
@media (prefers-reduced-motion:no-preference){{text,#all{{animation-duration:{total}s;animation-timing-function:step-end;animation-iteration-count:infinite}}
@keyframes scroll{{0%{{transform:translateY(0)}}{moves}}}#all{{animation-name:scroll}}
{"".join(style)}}}
</style>
<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8" fill="#0d1117" stroke="#3d444d"/>
<circle cx="18" cy="15" r="5" fill="#ff5f57"/><circle cx="36" cy="15" r="5" fill="#febc2e"/><circle cx="54" cy="15" r="5" fill="#28c840"/>
<svg x="{LEFT}" y="{TOP - 14}" width="{width - LEFT}" height="{rows * LINE + 6}"><g transform="translate(0 14)"><g id="all" style="transform:translateY(-{(count - rows) * LINE}px)">
{chr(10).join(texts)}
</g></g></svg>
</svg>
"""


if __name__ == "__main__":
    output, *arguments = sys.argv[1:]
    recorded, status = record(arguments)
    sys.stdout.write("".join(text for _, text in recorded))
    if status:
        sys.exit(f"terminal_svg.py: {shlex.join(arguments)} ended with status {status}")
    with open(output, "w", encoding="utf-8") as file:
        file.write(as_svg(shlex.join(arguments), recorded))
