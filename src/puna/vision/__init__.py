"""Vision: images are decoded within limits, prepared as pixels, and encoded by vision towers."""
