"""Which of two models gives the next token: approximate methods, and one that is exact."""
