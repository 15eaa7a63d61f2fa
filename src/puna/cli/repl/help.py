"""The help texts of the interactive prompt."""

from __future__ import annotations

COMMANDS = """\
Available Commands:
  /set            Set session variables
  /show           Show model information
  /load <model>   Load a session or model
  /save <model>   Save your current session
  /clear          Clear session context
  /list           List models
  /bye            Exit
  /?, /help       Help for a command
  /? shortcuts    Help for keyboard shortcuts

Use \"\"\" to begin a multi-line message.
"""

SET = """\
Available Commands:
  /set parameter <name> <value>   Set a parameter
  /set system <text>              Set system message
  /set history                    Enable history
  /set nohistory                  Disable history
  /set wordwrap                   Enable wordwrap
  /set nowordwrap                 Disable wordwrap
  /set format json                Enable JSON mode
  /set noformat                   Disable formatting
  /set verbose                    Show timings after an answer
  /set quiet                      Do not show timings
  /set think [high|medium|low]    Enable thinking
  /set nothink                    Disable thinking
"""

PARAMETERS = """\
Available Parameters:
  /set parameter seed <int>                 Random number seed
  /set parameter num_predict <int>          Maximum number of tokens to generate (-1: ten contexts)
  /set parameter top_k <int>                Sample from the k most likely tokens
  /set parameter top_p <float>              Sample from the most likely tokens with total probability p
  /set parameter min_p <float>              Drop tokens less likely than this fraction of the top one
  /set parameter typical_p <float>          Sample from the most typical tokens with total probability p
  /set parameter num_ctx <int>              Context length in tokens
  /set parameter num_keep <int>             Tokens kept from the start when the context is full
  /set parameter temperature <float>        Randomness; 0 always picks the most likely token
  /set parameter repeat_penalty <float>     How strongly to avoid repetition
  /set parameter repeat_last_n <int>        How far back to look for repetition
  /set parameter presence_penalty <float>   Penalty for tokens that already occurred
  /set parameter frequency_penalty <float>  Penalty for tokens, times how often they occurred
  /set parameter num_thread <int>           Number of threads (0: all cores)
  /set parameter stop <text> <text> ...     Stop at any of these texts
"""

SHOW = """\
Available Commands:
  /show info         Show details for this model
  /show license      Show model license
  /show modelfile    Show Modelfile for this model
  /show parameters   Show parameters for this model
  /show system       Show system message
  /show template     Show prompt template
"""

SHORTCUTS = """\
Available keyboard shortcuts:
  Ctrl + a      Move to the beginning of the line (Home)
  Ctrl + e      Move to the end of the line (End)
   Alt + b      Move back one word
   Alt + f      Move forward one word
  Ctrl + k      Delete to the end of the line
  Ctrl + u      Delete to the beginning of the line
  Ctrl + w      Delete the word before the cursor
  Ctrl + r      Search the history (Enter takes the match)
   Tab          Complete a command, a model's name or a path
  Ctrl + l      Clear the screen
  Ctrl + g      Write the message in an editor
   Alt + Enter  Start a new line
  Ctrl + c      Stop the answer
  Ctrl + d      Exit
"""

TOPICS = {"set": SET, "show": SHOW, "shortcuts": SHORTCUTS, "shortcut": SHORTCUTS}
