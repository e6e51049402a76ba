"""Core ML, for Apple's devices."""

import logging

# On systems other than macOS each import would list the parts of coremltools that need one.
logging.getLogger("coremltools").setLevel(logging.ERROR)
