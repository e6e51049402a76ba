"""What training reads: prompts, texts, answers that the model wrote, hidden states of them."""
