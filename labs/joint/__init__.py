"""KV maps and the model that reads them, trained together."""
