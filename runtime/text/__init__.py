"""Between text and tokens: tokenizer, chat template, prompts, streams of text."""
