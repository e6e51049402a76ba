"""Decoding methods that pay on nothing tried; each module makes its method from a setting."""
