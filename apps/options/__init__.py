"""Options that several verbs share, with their help texts."""
