"""What people run: one module per verb; argument parsing lives only here."""
