"""Words of prose that are in no dictionary: found beside the interface, underlined, mended."""
