"""Draft models made of some of the model's layers."""
