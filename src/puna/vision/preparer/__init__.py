"""The process that decodes images for a vision tower, within bounds."""
