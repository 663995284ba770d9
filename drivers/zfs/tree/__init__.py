"""A dataset and its descendants as one volume: `mirrord create --recursive`."""
