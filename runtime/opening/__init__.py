"""What an engine takes from a bundle, and how that is opened."""
