"""Process that decodes an audio file within limits."""
