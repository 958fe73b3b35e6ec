"""Commands, and the libraries they share."""
