"""What users ask for text: the engine, its scheduler, streams, conversations and suggestions."""
