"""Where texts of the user are kept, and what is said of that."""
