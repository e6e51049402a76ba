"""Text fields of Linux applications, through the input method framework IBus."""
