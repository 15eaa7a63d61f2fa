"""What sees, as files of its own beside text models: a table for each family."""
