"""`surefoot completion bash|zsh|fish`: a shell script that calls surefoot at every Tab.

The script runs `surefoot completion candidates SHELL …` with the words typed so far. The first line of the answer says
which files to offer (none, any, folders, or a suffix); each further line is a word.
"""

from __future__ import annotations

from collections.abc import Sequence

from surefoot.cli.flags import Parser
from surefoot.errors import UsageError, did_you_mean
from surefoot.text import print

DESCRIPTION = """Print a script that completes commands, flags and their values in your shell.

bash, in ~/.bashrc:
  eval "$(surefoot completion bash)"

zsh, in ~/.zshrc:
  eval "$(surefoot completion zsh)"

fish, once:
  surefoot completion fish > ~/.config/fish/completions/surefoot.fish
"""

BASH = r"""# surefoot's completion for bash: eval "$(surefoot completion bash)"
_surefoot() {
    local files word cur="${COMP_WORDS[COMP_CWORD]}"
    case "$cur" in [:=]) cur="" ;; esac
    COMPREPLY=()
    {
        IFS= read -r files
        while IFS= read -r word; do COMPREPLY+=("$word"); done
    } < <("${1/#\~/$HOME}" completion candidates bash "$COMP_WORDBREAKS" "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
    case "$files" in
        none) ;;
        *)
            compopt -o filenames 2>/dev/null
            while IFS= read -r word; do COMPREPLY+=("$word"); done < <(
                case "$files" in
                    any) compgen -f -- "$cur" ;;
                    folders) compgen -d -- "$cur" ;;
                    *) compgen -f -X "!*$files" -- "$cur"; compgen -d -- "$cur" ;;
                esac
            )
            ;;
    esac
    case "${COMPREPLY[0]}" in *.py | */) compopt -o nospace 2>/dev/null ;; esac
}
complete -F _surefoot surefoot
"""

ZSH = r"""#compdef surefoot
# surefoot's completion for zsh: eval "$(surefoot completion zsh)"
_surefoot() {
    local files line
    local -a found unfinished
    {
        IFS= read -r files
        while IFS= read -r line; do
            if [[ $line == */ ]]; then unfinished+=("$line"); else found+=("$line"); fi
        done
    } < <("${words[1]/#\~/$HOME}" completion candidates zsh "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)
    [[ $PREFIX == --*=* ]] && compset -P '*='
    (( $#found )) && _describe -V surefoot found
    (( $#unfinished )) && compadd -S '' -a unfinished
    case "$files" in
        none | '') ;;
        any) _files ;;
        folders) _files -/ ;;
        .py) _files -g "*$files(-.)" -S '' ;;
        *) _files -g "*$files(-.)" ;;
    esac
}
if [[ "${funcstack[1]}" == _surefoot ]]; then
    _surefoot "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
    compdef _surefoot surefoot
fi
"""

FISH = r"""# surefoot's completion for fish: surefoot completion fish > ~/.config/fish/completions/surefoot.fish
function __surefoot_candidates
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l program (string replace -r '^~' $HOME -- $words[1])
    set -l found ($program completion candidates fish $words[2..-1] "$current" 2>/dev/null)
    switch "$found[1]"
        case none ''
        case any
            __fish_complete_path "$current"
        case folders
            __fish_complete_directories "$current" ''
        case '*'
            __fish_complete_suffix $found[1]
    end
    test (count $found) -gt 1; and printf '%s\n' $found[2..-1]
end
complete -c surefoot -f -a '(__surefoot_candidates)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def run(words: Sequence[str]) -> int:
    if words[:1] == ["candidates"]:
        print(*answer(words[1], words[2:]), sep="\n")
        return 0
    parser = Parser(prog="surefoot completion", description=DESCRIPTION)
    parser.add_argument("shell", metavar="{" + ",".join(SCRIPTS) + "}", help="the shell to print a script for")
    shell = parser.parse_args(words).shell
    if shell not in SCRIPTS:
        raise UsageError(f"no script for '{shell}'{did_you_mean(shell, SCRIPTS)} (one of {', '.join(SCRIPTS)})")
    print(SCRIPTS[shell], end="")
    return 0


def answer(shell: str, words: Sequence[str]) -> list[str]:
    """Lines for a shell's script. bash passes its word breaks and the line up to the cursor, other shells the words."""
    from surefoot.cli.candidates import propose, typed_words

    breaks, current = "", ""
    if shell == "bash":
        breaks, line = words
        (_, *typed), current = typed_words(line)
    else:
        *typed, current = words
    found = propose(typed, current)
    files = found.files
    if shell == "zsh" and current.startswith("--") and "=" in current:
        breaks = "="
    if shell == "fish" and "=" in current:  # it would complete the whole word
        files = "none"
    skipped = max((current.rfind(letter) + 1 for letter in ":=" if letter in breaks), default=0)
    lines = {word[skipped:]: help for word, help in found.words.items()}
    if shell == "bash":
        return [files, *lines]
    between = "\t" if shell == "fish" else ":"
    if shell == "zsh":  # a colon ends the word there
        lines = {word.replace("\\", "\\\\").replace(":", "\\:"): help for word, help in lines.items()}
    return [files, *(f"{word}{between}{help}" if help else word for word, help in lines.items())]
