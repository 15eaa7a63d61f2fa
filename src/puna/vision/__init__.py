"""Vision: images decoded within limits, prepared as pixels, and read by towers."""
