"""Qualcomm's NPUs."""
