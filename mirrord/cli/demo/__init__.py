"""`mirrord demo`: a mirror at work, on places of its own that it removes again."""
