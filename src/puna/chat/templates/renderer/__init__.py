"""The process that renders chat templates, within bounds, for one loaded model."""
