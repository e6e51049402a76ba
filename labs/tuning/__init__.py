"""What `edgedec tune` learns for methods of labs."""
