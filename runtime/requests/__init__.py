"""One request being served: streams, conversations, suggestions, results."""
