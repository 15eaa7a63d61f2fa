"""Audio: recordings as models hear them."""
