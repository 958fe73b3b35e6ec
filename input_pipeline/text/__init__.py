"""Text: tokenizers, class names and prompts."""
