#!/usr/bin/env bats
# The README tells the truth: its tables are those of the code.

bats_require_minimum_version 1.5.0

setup() {
  load rules_helper
  rules::files README.md env/defaults.env scripts/lib/cli.bash
}

fail() { printf '%s\n' "$1" >&2 && return 1; }

@test "the table of knobs is the one that scripts/dev/knob_table.sh makes from env/defaults.env" {
  table=$(sed -n '/<!-- knobs -->/,/<!-- \/knobs -->/p' README.md | sed '1d;$d')
  [[ -n $table ]]
  diff <(printf '%s\n' "$table") <(scripts/dev/knob_table.sh)
}

@test "every knob has a comment that says what it is" {
  [[ $(scripts/dev/knob_table.sh | tail -n +3 | wc -l) == "$(grep -cE '^[A-Z0-9_]+=' env/defaults.env)" ]]
  run ! grep -E '\| +\|$' <(scripts/dev/knob_table.sh | tail -n +3)
}

@test "the table of exit statuses is the one of scripts/lib/cli.bash" {
  in_readme=$(sed -nE 's/^\| ([0-9]) \| (.*) \|$/\1 \2/p' README.md | sort)
  in_code=$(sed -nE "s/^  \[([0-9])\]='(.*)'$/\1 \2/p" scripts/lib/cli.bash | sort)
  [[ $(wc -l <<<"$in_code") == 10 ]]
  diff <(printf '%s\n' "$in_readme") <(printf '%s\n' "$in_code")
}

@test "every make target and every file that the README and CONTRIBUTING name is there" {
  mapfile -t targets < <(grep -ohE '`?make( [a-z-]+)+' README.md CONTRIBUTING.md | grep -oE '[a-z-]+' | grep -vx make | sort -u)
  ((${#targets[@]} > 5))
  for target in "${targets[@]}"; do grep -qE "^${target}:" Makefile || { printf '%s\n' "$target" && false; }; done
  # shellcheck disable=SC2016  # backticks of Markdown
  mapfile -t files < <(grep -ohE '`(scripts|env|py|tests|docker|jobspecs)/[A-Za-z0-9_./-]+`' README.md CONTRIBUTING.md | tr -d '`' | grep -vE '^env/(local.env|nodes)$|NN' | sort -u)
  ((${#files[@]} > 10))
  for file in "${files[@]}"; do [[ -e $file ]] || { printf '%s\n' "$file" && false; }; done
}

@test "every command line of the README asks for targets and knobs that there are" {
  load ../readme
  mapfile -t commands < <(readme::commands)
  printf '# looked at %d command lines\n' "${#commands[@]}" >&3
  ((${#commands[@]} > 15))
  for command in "${commands[@]}"; do
    [[ $command != scripts/* || -x ${command%% *} ]] || fail "no such script: ${command}"
    [[ $command == 'make '* ]] || continue
    read -r -a words <<<"${command#make }"
    for word in "${words[@]}"; do
      case $word in
        *=*) grep -q "^${word%%=*}=" env/defaults.env || [[ $word == JOBSPEC=* ]] || fail "no knob ${word%%=*}: ${command}" ;;
        *) grep -qE "^${word}:" Makefile || fail "no target ${word}: ${command}" ;;
      esac
    done
  done
}

@test "what is indented in the README and is no command is known: a file, output, or the tree of directories" {
  load ../readme
  mapfile -t others < <(readme::code | grep -vE "^(${README_COMMAND}| )")
  ((${#others[@]} > 5))
  unknown=$(printf '%s\n' "${others[@]}" | grep -vE '^(error |ok |…$|[0-9]+ of [0-9]+ |secrets:$|workdir/)') || true
  [[ -z $unknown ]] || fail "neither a command of README_COMMAND (tests/bats/readme.bash) nor one of these: ${unknown}"
}

@test "the quick start's captured output is there and ends well" {
  block=$(sed -n '/<!-- quickstart -->/,/<!-- \/quickstart -->/p' README.md)
  [[ $block == *SUCCEEDED* && $block == *'fidelity: 11 of 11 checks passed'* && $block == *' phases'* ]]
}
