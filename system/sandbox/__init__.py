"""Programs that strangers wrote, run in processes of their own that can do little."""
