"""What the program does: settings, ingestion, search, prompts, one turn of a conversation, the command line."""
