"""`puna completion SHELL`: scripts that make a shell complete commands, options and model names.

The scripts call `puna` with the environment variables that typer reads.
"""

from __future__ import annotations

from enum import StrEnum


class Shell(StrEnum):
    """A shell with a completion script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


#: Bash ends words at colons, as in a model's name, so completions must not repeat the part before one.
_BASH = r"""
_puna_completion() {
    local IFS=$' \t\n' line="${COMP_LINE:0:COMP_POINT}" word
    local -a words
    read -r -a words <<< "$line"
    [[ "$line" == *[[:space:]] ]] && words+=("")
    word="${words[${#words[@]}-1]}"
    IFS=$'\n'
    COMPREPLY=($(IFS=' '; env COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1)) \
        _PUNA_COMPLETE=complete_bash "${words[0]}"))
    if [[ "$word" == *:* && "$COMP_WORDBREAKS" == *:* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*:}"}"}")
    fi
}
complete -o default -F _puna_completion puna
"""

_ZSH = """
#compdef puna
_puna_completion() {
    eval $(env _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" _PUNA_COMPLETE=complete_zsh puna)
}
if [ "$funcstack[1]" = "_puna" ]; then
    _puna_completion "$@"
else
    compdef _puna_completion puna
fi
"""

_FISH_ASKS = "env _PUNA_COMPLETE=complete_fish _TYPER_COMPLETE_ARGS=(commandline -cp)"
_FISH = f"""
complete --command puna --no-files \\
    --arguments "({_FISH_ASKS} _TYPER_COMPLETE_FISH_ACTION=get-args puna)" \\
    --condition "{_FISH_ASKS} _TYPER_COMPLETE_FISH_ACTION=is-args puna"
"""

_SCRIPTS = {Shell.BASH: _BASH, Shell.ZSH: _ZSH, Shell.FISH: _FISH}


def script(shell: Shell) -> str:
    """Return the script for `shell`."""
    return _SCRIPTS[shell].strip()
