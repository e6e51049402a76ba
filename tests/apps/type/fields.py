"""A window with text fields of a toolkit; run by the system's Python, which has the toolkits.

python3 fields.py gtk3|gtk4|qt5|qt6|vte FILE

Each change of a field is a line of JSON in FILE.
"""

import json
import sys
import time

toolkit, path = sys.argv[1:]
out = open(path, "a", buffering=1)  # noqa: PTH123, SIM115 - until the process ends


def tell(field, text):
    out.write(json.dumps({"field": field, "text": text, "s": time.monotonic()}) + "\n")


def place(field, x, y):
    """Tells where the middle of a field is, in pixels of the window."""
    out.write(json.dumps({"field": field, "at": [int(x), int(y)]}) + "\n")


def gtk(version):
    import gi

    gi.require_version("Gtk", version)
    from gi.repository import GLib, Gtk

    def tell_places(top):
        for name, field in fields.items():
            found = field.translate_coordinates(top, 20, 10)
            place(name, *found[-2:])

    fields = {name: Gtk.Entry() for name in ("entry", "password", "number", "address")}
    purpose = Gtk.InputPurpose
    fields["password"].set_visibility(False)
    fields["password"].set_input_purpose(purpose.PASSWORD)
    fields["number"].set_input_purpose(purpose.NUMBER)
    fields["address"].set_input_purpose(purpose.URL)
    for name, entry in fields.items():
        entry.connect("changed", lambda e, name=name: tell(name, e.get_text()))
    view = Gtk.TextView()
    view.set_size_request(560, 200)
    buffer = view.get_buffer()
    buffer.connect("changed", lambda b: tell("view", b.get_text(*b.get_bounds(), True)))
    box = Gtk.Box(orientation=Gtk.Orientation.VERTICAL)
    fields = {"view": view, **fields}
    if version == "4.0":
        loop = Gtk.Application()

        def activate(application):
            window = Gtk.ApplicationWindow(application=application, title="fields")
            for field in fields.values():
                box.append(field)
            window.set_child(box)
            window.present()
            view.grab_focus()
            GLib.timeout_add(300, tell_places, window)

        loop.connect("activate", activate)
        loop.run([])
        return
    window = Gtk.Window(title="fields")
    for field in fields.values():
        box.pack_start(field, False, True, 0)
    window.add(box)
    window.connect("destroy", Gtk.main_quit)
    window.show_all()
    view.grab_focus()
    GLib.timeout_add(300, tell_places, window)
    Gtk.main()


def qt(version):
    if version == 5:
        from PyQt5 import QtCore, QtWidgets
    else:
        from PyQt6 import QtCore, QtWidgets
    application = QtWidgets.QApplication(["fields"])
    window = QtWidgets.QWidget()
    window.setWindowTitle("fields")
    layout = QtWidgets.QVBoxLayout(window)
    view = QtWidgets.QPlainTextEdit()
    view.textChanged.connect(lambda: tell("view", view.toPlainText()))
    layout.addWidget(view)
    hints, fields = QtCore.Qt.InputMethodHint, {"view": view}
    kinds = {
        "entry": hints.ImhNone,
        "password": hints.ImhHiddenText,
        "number": hints.ImhDigitsOnly,
        "address": hints.ImhUrlCharactersOnly,
    }
    for name, hint in kinds.items():
        field = QtWidgets.QLineEdit()
        field.setInputMethodHints(hint)
        if name == "password":
            field.setEchoMode(QtWidgets.QLineEdit.EchoMode.Password)
        field.textChanged.connect(lambda text, name=name: tell(name, text))
        layout.addWidget(field)
        fields[name] = field
    window.resize(600, 360)
    window.show()
    view.setFocus()

    def tell_places():
        for name, field in fields.items():
            found = field.mapTo(window, QtCore.QPoint(20, 10))
            place(name, found.x(), found.y())

    QtCore.QTimer.singleShot(300, tell_places)
    application.exec() if version == 6 else application.exec_()


def vte():
    import gi

    gi.require_version("Gtk", "3.0")
    gi.require_version("Vte", "2.91")
    from gi.repository import Gtk, Vte

    window, terminal = Gtk.Window(title="fields"), Vte.Terminal()
    window.add(terminal)
    shell = ["/bin/bash", "--norc", "-c", "PS1='$ ' exec bash --norc"]
    terminal.spawn_async(0, "/tmp", shell, None, 0, None, None, -1, None, None)
    terminal.connect("contents-changed", lambda t: tell("view", t.get_text(None)[0].rstrip()))
    window.connect("destroy", Gtk.main_quit)
    window.show_all()
    Gtk.main()


makers = {
    "gtk3": lambda: gtk("3.0"),
    "gtk4": lambda: gtk("4.0"),
    "qt5": lambda: qt(5),
    "qt6": lambda: qt(6),
    "vte": vte,
}
makers[toolkit]()
