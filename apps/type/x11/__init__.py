"""A suggestion in a window at the caret, on X11."""
