"""Process that decodes images for a vision tower within limits."""
