"""Measuring: interleaved repetitions, their statistics, and what disturbed them."""
