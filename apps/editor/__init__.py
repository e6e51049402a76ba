"""What `edgedec desktop` is made of: an editor's window around `edgedec.widgets`."""
