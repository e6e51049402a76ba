"""Decoding methods: how the next tokens are found."""
