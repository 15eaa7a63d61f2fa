"""Excessive templates in both languages, and the limit that stops each."""

from __future__ import annotations

TIME, MEMORY, OUTPUT = "2 s of processor time", "64 MB of memory", "4 MB of output"

#: The template and the limit, by name; the name begins with the language.
HOSTILE: dict[str, tuple[str, str]] = {
    "jinja: loops": ("{% for a in range(99999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", TIME),
    "jinja: a recursive macro": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        TIME,
    ),
    "jinja: powers in one call of C": ("{% if ((10 ** 1000) ** 1000) ** 1000 %}{% endif %}", TIME),
    "jinja: a text that doubles": (
        "{% set n = namespace(x='a' * 99) %}{% for i in range(40) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        MEMORY,
    ),
    "jinja: a wide number": ("{% if true %}{{ '%1000000000d' | format(1) | length }}{% endif %}", MEMORY),
    "jinja: a wide text": ("{% if true %}{{ 'x' | center(10 ** 9) | length }}{% endif %}", MEMORY),
    "jinja: a wide indent": ("{% if true %}{{ [[1]] | tojson(indent=500000000) }}{% endif %}", MEMORY),
    "jinja: much text": ("{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", OUTPUT),
    "go: loops": ("{{ range 1000000000000 }}{{ end }}{{ .Messages }}", TIME),
    "go: js of a long text": (
        "{{ $x := `<` }}{{ range 19 }}{{ $x = print $x $x }}{{ end }}"
        "{{ range 1000 }}{{ if js $x | eq `` }}{{ end }}{{ end }}{{ .Messages }}",
        TIME,
    ),
    "go: a text that doubles": (
        "{{ $x := `<` }}{{ range 40 }}{{ $x = print $x $x }}{{ end }}{{ .Messages }}",
        MEMORY,
    ),
    "go: much text": ("{{ range 1000000 }}more than enough {{ end }}{{ .Messages }}", OUTPUT),
}
