"""What is trained beside a bundle's models."""
