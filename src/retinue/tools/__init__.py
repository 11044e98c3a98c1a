"""What a model may call; each tool's text for the model lies in a .md beside it. It owns no session and no log."""
