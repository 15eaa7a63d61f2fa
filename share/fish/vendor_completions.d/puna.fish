complete --command puna --no-files \
    --arguments "(env _PUNA_COMPLETE=complete_fish _TYPER_COMPLETE_ARGS=(commandline -cp) _TYPER_COMPLETE_FISH_ACTION=get-args puna)" \
    --condition "env _PUNA_COMPLETE=complete_fish _TYPER_COMPLETE_ARGS=(commandline -cp) _TYPER_COMPLETE_FISH_ACTION=is-args puna"
