"""`edgedec desktop`: an editor's window around `edgedec.widgets`."""
