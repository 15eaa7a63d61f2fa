"""Vision towers, which get files of their own beside text models: a table for each family."""
