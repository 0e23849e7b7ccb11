"""Speed on random weights of a named shape: decode steps, first tokens, and what the card was just measured to give."""
