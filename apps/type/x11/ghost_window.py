"""A window of one line of grey text at the caret. It takes no focus, no keys and no clicks."""

from __future__ import annotations

import queue
import subprocess
import threading
from contextlib import suppress
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw, ImageFont
from Xlib import X, Xatom
from Xlib.display import Display
from Xlib.error import ConnectionClosedError, XError
from Xlib.ext import shape
from Xlib.protocol import rq

from edgedec.apps.type.text_place import Rectangle, TextPlace
from edgedec.apps.type.x11.front_window import front_window
from edgedec.models.errors import ConfigError

NAME = "edgedec-type"
"""Class of the window, by which others tell it apart; its title is the text."""

_USUAL_HEIGHT = 18
"""Of a line, if the application does not say. Units: pixels."""

_LARGEST = 100
_STRIP = 400
"""Most pixels beside the caret that are looked at for text behind it."""

_LATE = 4
"""How far behind its text a browser may report the caret. Units: heights of the caret."""

_DEPTHS = (24, 32)
_PIXELS_PER_POINT = 96 / 72

Colour = tuple[int, int, int]


class GhostWindow:
    """A `GhostView`. A thread of its own draws, so that no key waits for the screen."""

    def __init__(self) -> None:
        """Raises: ConfigError: There is no screen, or its colours are of an unusual kind."""
        try:
            self._display = Display()
        except Exception as error:  # of many kinds, from the library's and the socket's
            raise ConfigError(f"cannot open the X11 display: {error}") from None
        if self._display.screen().root_depth not in _DEPTHS:
            raise ConfigError("the screen has other colours than 24 bits: use --panel")
        self._root = self._display.screen().root
        self._window = self._make_window()
        self._is_shown = self._is_below = False
        self._text, self._caret = "", Rectangle(0, 0, 0, 0)  # what is shown, and as reported
        self._late = 0  # pixels that the caret is right of where the application says
        self._colours: tuple[Colour, Colour] = ((255, 255, 255), (140, 140, 140))
        self._orders: queue.SimpleQueue[tuple[str, Rectangle | None]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="ghost", daemon=True).start()

    def show(self, text: str, place: TextPlace) -> None:
        self._orders.put((text, place.caret))

    def hide(self) -> None:
        self._orders.put(("", None))

    def _work(self) -> None:
        while True:
            text, caret = self._orders.get()
            while not self._orders.empty():  # only the latest matters
                text, caret = self._orders.get()
            try:
                caret = caret or self._corner()
                if text and caret is not None:
                    self._draw(text, caret)
                elif self._is_shown:
                    self._window.unmap()
                    self._is_shown = False
                self._display.flush()
            except (XError, ConfigError):
                continue  # such as of a window that has gone
            except (ConnectionClosedError, OSError):
                return  # the session ends

    def _corner(self) -> Rectangle | None:
        """Returns a caret in the lower left corner of the window in front."""
        window = front_window(self._display)
        if window is None:
            return None
        size = window.get_geometry()
        corner = window.translate_coords(self._root, 0, 0)  # negated, as the library has it
        return Rectangle(-corner.x + 4, -corner.y + size.height - 22, 0, _USUAL_HEIGHT)

    def _make_window(self) -> rq.Struct:
        window = self._root.create_window(
            0, 0, 1, 1, 0, X.CopyFromParent, override_redirect=True, event_mask=0
        )
        window.set_wm_class(NAME, NAME)
        kind = self._display.intern_atom("_NET_WM_WINDOW_TYPE")
        tooltip = self._display.intern_atom("_NET_WM_WINDOW_TYPE_TOOLTIP")
        window.change_property(kind, Xatom.ATOM, 32, [tooltip])
        if self._display.has_extension("SHAPE"):  # clicks go through it
            window.shape_rectangles(shape.SO.Set, shape.SK.Input, X.Unsorted, 0, 0, [])
        return window

    def _draw(self, text: str, caret: Rectangle) -> None:
        x, y, _, height = caret
        if height <= 0:  # applications of the old protocol report the baseline alone
            height = _USUAL_HEIGHT
            y -= height * 3 // 4
        height = min(height, _LARGEST)
        font = _font(height)
        x += max(caret.width, 1)
        if not self._is_shown or caret != self._caret:
            self._late = 0
        elif self._text.endswith(text):  # letters were typed, and the caret is reported later
            self._late += round(font.getlength(self._text) - font.getlength(text))
        self._text, self._caret = text, caret
        if not self._is_shown:
            self._look(x, y, height)
        x += self._late
        room = self._display.screen().width_in_pixels - x
        width = min(int(font.getlength(text)) + 3, max(room, 1))
        if self._is_below:
            y += height + 2
        background, colour = self._colours
        image = Image.new("RGB", (width, height), background)
        ascent, descent = font.getmetrics()
        top = (height - ascent - descent) // 2
        ImageDraw.Draw(image).text((0, top), text, colour, font)
        title = self._display.intern_atom("_NET_WM_NAME")
        utf8 = self._display.intern_atom("UTF8_STRING")
        self._window.change_property(title, utf8, 8, text.encode())
        self._window.configure(x=x, y=y, width=width, height=height, stack_mode=X.Above)
        if not self._is_shown:
            self._window.map()
            self._is_shown = True
        self._put(image)

    def _put(self, image: Image.Image) -> None:
        """Copies an image into the window, in parts that requests have room for."""
        context = self._window.create_gc()
        data = image.tobytes("raw", "BGRX")
        n_rows = max(1, 200_000 // (4 * image.width))
        for top in range(0, image.height, n_rows):
            rows = min(n_rows, image.height - top)
            part = data[4 * image.width * top :][: 4 * image.width * rows]
            depth = self._display.screen().root_depth
            self._window.put_image(context, 0, top, image.width, rows, X.ZPixmap, depth, 0, part)
        context.free()

    def _look(self, x: int, y: int, height: int) -> None:
        """Finds the colour behind the caret, and where text that stands there ends."""
        with suppress(XError):
            screen = self._display.screen()
            x, y = max(x, 0), max(y, 0)
            width = min(_STRIP, screen.width_in_pixels - x)
            height = min(height, screen.height_in_pixels - y)
            if width <= 0 or height <= 0:
                return  # the caret is outside of the screen
            shot = self._root.get_image(x, y, width, height, X.ZPixmap, 0xFFFFFFFF)
            strip = Image.frombytes("RGB", (width, height), shot.data, "raw", "BGRX")
            _, background = max(strip.getcolors(width * height))
            difference = ImageChops.difference(strip, Image.new("RGB", strip.size, background))
            end = _end_of_text(np.asarray(difference).max(axis=(0, 2)) > 0, height)
            self._is_below = end > _LATE * height
            self._late = 0 if self._is_below else end
            self._colours = background, _muted(background)


def _end_of_text(has_ink: NDArray[np.bool_], gap: int) -> int:
    """Returns the column behind text at column 0, which ``gap`` columns without ink end."""
    end = 0
    for column in np.flatnonzero(has_ink):
        if column - end >= gap:
            break
        end = int(column) + 1
    return end


def _muted(background: Colour) -> Colour:
    """Returns a grey that can be read on a background and is weaker than text."""
    is_light = sum(background) > 3 * 127
    other = 0 if is_light else 255
    red, green, blue = (round(0.55 * part + 0.45 * other) for part in background)
    return red, green, blue


@cache
def _font(height: int) -> ImageFont.FreeTypeFont:
    """Returns the desktop's font, as large as a line of ``height`` pixels has it."""
    path = _font_path()
    if not path:
        raise ConfigError("no font was found: install fontconfig and a font")
    sizes = (ImageFont.truetype(path, points * _PIXELS_PER_POINT) for points in range(5, 80))
    return min(sizes, key=lambda font: abs(sum(font.getmetrics()) - height))


@cache
def _font_path() -> str:
    """Returns the file of the desktop's font for text; empty if nobody knows."""
    with suppress(OSError, subprocess.SubprocessError):
        command = ["fc-match", "--format=%{file}", "sans"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout
    return ""
