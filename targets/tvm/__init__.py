"""Programs that TVM compiles, of the target cpu."""
