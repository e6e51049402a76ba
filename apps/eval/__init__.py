"""`edgedec eval`: tasks, programs held at arm's length, samples, statistics."""
