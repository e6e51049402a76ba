"""Tasks, their problems, and how answers are judged: what `eval` and `fleet eval` share."""
