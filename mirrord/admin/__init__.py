"""Administration: hosts, keys and certificates, block volumes, recording traces."""
