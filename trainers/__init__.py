"""From a config to a trained model."""
