"""Keys: which partition a row belongs to."""
