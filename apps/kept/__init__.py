"""What edgedec keeps of a user's texts: where, and how it is removed."""
