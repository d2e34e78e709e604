#!/usr/bin/env bats
# The README and the pages in docs/ are correct: their tables match the code, and their links and command lines work.

bats_require_minimum_version 1.5.0

setup() {
  load rules_helper
  load ../readme
  rules::files README.md docs/knobs.md env/defaults.env scripts/lib/cli.bash
}

# part FILE NAME: what is between its two markers.
part() { sed -n "/^<!-- $2 -->\$/,/^<!-- \/$2 -->\$/p" "$1" | sed '1d;$d'; }

fail() { printf '%s\n' "$1" >&2 && return 1; }

@test "the table of knobs is the one that scripts/dev/knob_table.sh makes" {
  table=$(part docs/knobs.md knobs)
  [[ -n $table ]]
  diff <(printf '%s\n' "$table") <(scripts/dev/knob_table.sh)
}

@test "every knob has a comment that says what it is" {
  [[ $(scripts/dev/knob_table.sh | tail -n +3 | wc -l) == "$(grep -cE '^[A-Z0-9_]+=' env/defaults.env)" ]]
  run ! grep -E '\| +\|$' <(scripts/dev/knob_table.sh | tail -n +3)
}

@test "the table of exit statuses is the one of scripts/lib/cli.bash" {
  in_readme=$(sed -nE 's/^\| ([0-9]+) \| (.*) \|$/\1 \2/p' README.md | sort)
  in_code=$(sed -nE "s/^  \[([0-9]+)\]='(.*)'$/\1 \2/p" scripts/lib/cli.bash | sort)
  [[ $(wc -l <<<"$in_code") == 13 ]]
  diff <(printf '%s\n' "$in_readme") <(printf '%s\n' "$in_code")
}

@test "every make target and every file that the pages name is there" {
  rules::files README.md CONTRIBUTING.md SECURITY.md 'docs/*.md' 'maintain/*.md'
  # shellcheck disable=SC2016,SC2153  # backticks of Markdown; rules::files sets FILES
  mapfile -t targets < <({ grep -ohE '`?make( [a-z-]+)+' README.md CONTRIBUTING.md && grep -ohE '`make( [a-z-]+)+' docs/*.md; } | grep -oE '[a-z-]+' | grep -vxE 'make|-' | sort -u)
  ((${#targets[@]} > 5))
  for target in "${targets[@]}"; do grep -qE "^${target}:" Makefile || { printf '%s\n' "$target" && false; }; done
  # Not ours: patterns of names, files that git ignores, and verl's own docker/.
  # shellcheck disable=SC2016,SC2153  # backticks of Markdown; rules::files sets FILES
  mapfile -t files < <(grep -ohE '`(scripts|maintain|env|py|judge|rehearsal|tests|docker|jobspecs|suites)/[A-Za-z0-9_./-]+`' "${FILES[@]}" | tr -d '`' | grep -vE '^env/(local.env|nodes|hosts)$|NN|/HOOK\.py|^docker/(Dockerfile|README|rocm)' | sort -u)
  ((${#files[@]} > 10))
  for file in "${files[@]}"; do [[ -e $file ]] || { printf '%s\n' "$file" && false; }; done
}

@test "every command line of all pages asks for targets and knobs that exist" {
  rules::files README.md CONTRIBUTING.md 'docs/*.md'
  mapfile -t commands < <(readme::commands "${FILES[@]}")
  printf '# checked %d command lines\n' "${#commands[@]}" >&3
  ((${#commands[@]} > 15))
  for command in "${commands[@]}"; do
    [[ $command != scripts/* || -x ${command%% *} ]] || fail "no such script: ${command}"
    [[ $command == 'make '* && $command != 'make -C '* ]] || continue # those of maintain/ have their own rule
    read -r -a words <<<"${command#make }"
    for word in "${words[@]}"; do
      case $word in
        *=*) grep -q "^${word%%=*}=" env/defaults.env || [[ $word == JOBSPEC=* ]] || fail "no knob ${word%%=*}: ${command}" ;;
        *) grep -qE "^${word}:" Makefile || fail "no target ${word}: ${command}" ;;
      esac
    done
  done
}

@test "an indented block of a page that is no command is known: file, output or tree" {
  mapfile -t others < <(readme::code | grep -vE "^(${README_COMMAND}| )")
  ((${#others[@]} > 5))
  unknown=$(printf '%s\n' "${others[@]}" | grep -vE '^(error |grpo: |workdir/|[0-9]+ (jobs with checkpoints|snapshots): |(NODE_IMAGE|VERL_SOURCE)=|(ppo|first|may mean|code|verdict|history|change|left out|page) {4,}|(head|worker-0) {2,})') || true
  [[ -z $unknown ]] || fail "neither a command of README_COMMAND (tests/bats/readme.bash) nor one of these: ${unknown}"
}

@test "the README shows lines of a quick start that ended well" {
  excerpt=$(part README.md quickstart | sed '/^$/d')
  [[ $excerpt == *SUCCEEDED* && $excerpt == *'fidelity: 11 of 11 checks passed'* && $excerpt == *' phases'* ]]
  (($(wc -l <<<"$excerpt") >= 15 && $(wc -l <<<"$excerpt") <= 25))
}

@test "the generators reproduce the table of knobs and the quick start, and no more" {
  copy="${BATS_TEST_TMPDIR}/copy"
  mkdir -p "${copy}/build"
  cp -r scripts maintain env docs README.md "$copy"
  part README.md quickstart | sed '/^$/d; s/^    //' >"${copy}/build/log"
  (cd "$copy" && scripts/dev/knob_table.sh --write && maintain/readme_capture.sh build/log)
  : >"${copy}/build/empty"
  run env NO_COLOR=1 "${copy}/maintain/readme_capture.sh" build/empty
  [[ $status == 2 && ${lines[0]} == "error   build/empty has no lines of a quick start: name the file with the output of 'make quickstart'." ]]
  diff README.md "${copy}/README.md" && diff -r docs "${copy}/docs"
  sed -i '/^<!-- .knobs -->$/d' "${copy}/docs/knobs.md"
  run "${copy}/scripts/dev/knob_table.sh" --write
  [[ $status == 1 && $output == "error   docs/knobs.md has no lines '<!-- knobs -->' and '<!-- /knobs -->' for what this script writes: add them." ]]
}

@test "the README has at most 220 lines: the rest is in docs/" {
  (($(wc -l <README.md) <= 220))
}

@test "every page of docs/ is linked exactly once from the README" {
  rules::files 'docs/*.md'
  diff <(printf '%s\n' "${FILES[@]}" | sort) <(grep -oE '\]\(docs/[^)#]*' README.md | sed 's/^](//' | sort)
}

@test "every relative link of every page leads to a file and a heading that are there" {
  rules::files '*.md'
  run .venv/bin/python tests/bats/rules/links.py . "${FILES[@]}"
  printf '# %s\n' "${lines[-1]}" >&3
  [[ $status == 0 ]] || fail "$output"
}

@test "the rule can fail: links to a missing file and heading, and pages without a link" {
  # shellcheck disable=SC2016  # backticks of Markdown
  printf '# A `b` & c\n[x](#a-b--c) [`y`](gone.md) [z](a.md#gone) [w](https://example.org)\n\n    [code](no)\n' >"${BATS_TEST_TMPDIR}/a.md"
  run .venv/bin/python tests/bats/rules/links.py "$BATS_TEST_TMPDIR" a.md
  [[ $status == 1 && $output == $'a.md: gone.md: no such file\na.md: a.md#gone: no such heading\nchecked 3 links of 1 pages, 2 broken' ]] || fail "$output"
  printf 'none\n' >"${BATS_TEST_TMPDIR}/a.md"
  run .venv/bin/python tests/bats/rules/links.py "$BATS_TEST_TMPDIR" a.md
  [[ $status == 1 ]]
}
