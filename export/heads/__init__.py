"""Draft heads in a bundle: their files, and graphs with them."""
