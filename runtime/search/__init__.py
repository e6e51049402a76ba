"""Searches among texts for the one that the model finds best."""
