"""Ways to need fewer passes, or smaller ones, of models that fill masks in. One module each."""
