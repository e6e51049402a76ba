"""Draft heads of models of edgedec's catalogue. `heads.toml` lists them; edgedec reads both."""
