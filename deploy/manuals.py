# SPDX-License-Identifier: Apache-2.0
"""Manual pages and completion of bash and fish, from the tables that --help is made from.

Usage: manuals.py BIN_DIR OUT_DIR
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any


def described(program: pathlib.Path, *words: str) -> dict[str, Any]:
    said = subprocess.run([program, *words, "--describe"], capture_output=True, check=True)
    return dict(json.loads(said.stdout))


def roff(text: str) -> str:
    """Text that roff takes as it is."""
    lines = text.replace("\\", "\\e").replace("-", "\\-").split("\n")
    return "\n".join("\\&" + line if line[:1] in (".", "'") else line for line in lines)


def argument_text(argument: dict[str, Any]) -> str:
    name = f"[{argument['name']}]" if argument["value"] else argument["name"]
    return roff(name) + ("..." if argument["many"] else "")


def manual(one: dict[str, Any], section: int, others: list[str]) -> str:
    title = one["program"].replace(" ", "-")
    lines = [
        f'.TH {title.upper()} {section} "" "Cistern" "Cistern"',
        ".SH NAME",
        f"{roff(title)} \\- {roff(one['about'].split('.')[0].replace(chr(10), ' '))}",
        ".SH SYNOPSIS",
        f".B {roff(one['program'])}",
        " ".join(["[OPTIONS]", *(argument_text(argument) for argument in one["arguments"])]),
        ".SH DESCRIPTION",
        roff(one["about"]),
    ]
    if one["arguments"]:
        lines.append(".SH ARGUMENTS")
        for argument in one["arguments"]:
            lines += [".TP", f".I {roff(argument['name'])}", roff(argument["help"])]
    lines.append(".SH OPTIONS")
    for option in one["options"]:
        value = f" \\fI{roff(option['value'])}\\fR" if option["value"] else ""
        lines += [".TP", f"\\fB{roff(option['name'])}\\fR{value}", roff(option["help"])]
    lines += [".SH EXAMPLE", ".nf", roff(one["example"]), ".fi", ".SH EXIT STATUS",
              "0 on success, 2 on wrong usage, 1 otherwise.", ".SH SEE ALSO",
              ", ".join(others)]
    return "\n".join(lines) + "\n"


def overview(commands: list[dict[str, Any]]) -> str:
    lines = ['.TH CISTERN 1 "" "Cistern" "Cistern"', ".SH NAME",
             "cistern \\- the command line of a store for the KV cache of LLM inference", ".SH SYNOPSIS",
             ".B cistern", "COMMAND [OPTIONS]", ".SH COMMANDS"]
    for command in commands:
        page = roff(command["name"].replace(" ", "-"))
        lines += [".TP", f"\\fB{roff(command['name'])}\\fR", f"{roff(command['about'])}; see cistern\\-{page}(1)"]
    lines += [".SH EXIT STATUS", "0 on success, 2 on wrong usage, 1 otherwise.", ".SH SEE ALSO", "cisternd(8)"]
    return "\n".join(lines) + "\n"


def second_words(commands: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Of the commands of two words, by their first."""
    words: dict[str, list[str]] = {}
    for first, _, second in (c["name"].partition(" ") for c in commands):
        if second:
            words.setdefault(first, []).append(second)
    return words


FILES = ("FILE", "DIR", "PATH", "PATH[:SIZE]")


def bash(daemon: dict[str, Any], commands: list[dict[str, Any]], of: dict[str, dict[str, Any]]) -> str:
    def words(one: dict[str, Any]) -> str:
        return " ".join([*(o["name"] for o in one["options"]), "--help", "--version"])

    files = sorted({o["name"] for one in [daemon, *of.values()] for o in one["options"] if o["value"] in FILES})
    # Two words are looked for before the first of them alone.
    names = sorted(of, key=lambda name: " " not in name)
    cases = "\n".join(f"    '{name} '*) words='{words(of[name])}' ;;" for name in names)
    seconds = "\n".join(f"      {first}) COMPREPLY=($(compgen -W '{' '.join(words)}' -- \"$2\")) ;;"
                        for first, words in second_words(commands).items())
    firsts = " ".join(c["name"] for c in commands if " " not in c["name"])
    return f"""# bash completion of cistern and cisternd
_cistern_words() {{
  case $3 in
    {'|'.join(files)}) COMPREPLY=($(compgen -f -- "$2")); return ;;
  esac
  case $2 in
    -*) COMPREPLY=($(compgen -W "$words" -- "$2")) ;;
    *) COMPREPLY=($(compgen -f -- "$2")) ;;
  esac
}}
_cistern() {{
  local words=''
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '{firsts} --help --version' -- "$2"))
    return
  fi
  if [ "$COMP_CWORD" -eq 2 ]; then
    case ${{COMP_WORDS[1]}} in
{seconds}
    esac
    [ ${{#COMPREPLY[@]}} -eq 0 ] || return 0
  fi
  case "${{COMP_WORDS[1]}} ${{COMP_WORDS[2]-}} " in
{cases}
  esac
  _cistern_words "$@"
}}
_cisternd() {{
  local words='{words(daemon)}'
  _cistern_words "$@"
}}
complete -o filenames -F _cistern cistern
complete -o filenames -F _cisternd cisternd
"""


def fish(daemon: dict[str, Any], commands: list[dict[str, Any]], of: dict[str, dict[str, Any]]) -> str:
    def quoted(text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", " ") + "'"

    def option(program: str, where: str, one: dict[str, Any]) -> str:
        value = "" if not one["value"] else " -r" if one["value"] in FILES else " -x"
        return f"complete -c {program}{where} -l {one['name'].lstrip('-')}{value} -d {quoted(one['help'])}"

    lines = ["# fish completion of cistern and cisternd"]
    first = "complete -c cistern -n __fish_use_subcommand -f"
    for c in commands:
        before, _, last = c["name"].rpartition(" ")
        where = f"complete -c cistern -n '__fish_seen_subcommand_from {before}' -f" if before else first
        lines.append(f"{where} -a {last} -d {quoted(c['about'])}")
    for name, one in of.items():
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in name.split())
        lines += [option("cistern", f" -n '{seen}'", o) for o in one["options"]]
    lines += [option("cisternd", "", o) for o in daemon["options"]]
    return "\n".join(lines) + "\n"


def main() -> None:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    programs, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    daemon = described(programs / "cisternd")
    commands = described(programs / "cistern")["commands"]
    of = {command["name"]: described(programs / "cistern", *command["name"].split()) for command in commands}
    (out / "cisternd.8").write_text(manual(daemon, 8, ["cistern(1)"]))
    (out / "cistern.1").write_text(overview(commands))
    for name, one in of.items():
        (out / f"cistern-{name.replace(' ', '-')}.1").write_text(manual(one, 1, ["cistern(1)", "cisternd(8)"]))
    (out / "cistern.bash").write_text(bash(daemon, commands, of))
    (out / "cistern.fish").write_text(fish(daemon, commands, of))


if __name__ == "__main__":
    main()
