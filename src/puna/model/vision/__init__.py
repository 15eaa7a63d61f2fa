"""Vision towers: what makes of images what text models read. One file per architecture."""
