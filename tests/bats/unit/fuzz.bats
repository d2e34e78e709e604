#!/usr/bin/env bats
# Hostile values through the real scripts up to the node: each knob arrives as one word, byte for byte, and no shell interprets it.

setup() {
  load ../test_helper
  sandbox::make
  # An engine whose head has the helper, and records what it gets: the words, each ended by a NUL, and the stream.
  stub docker - <<'SH'
    case "$1" in
      inspect) echo true ;;
      exec)
        [[ " $* " == *" submit "* ]] || exit 0
        printf '%s\0' "$@" >"${BOX}/words"
        cat >"${BOX}/stream"
        ;;
    esac
SH
}

# The values: text that a shell would run, split, expand or take for an option; none of them may be run.
hostile() {
  # shellcheck disable=SC2016  # hostile on purpose
  printf '%s\0' '$(touch ran)' '`touch ran`' ';touch ran;' '|touch ran' '&& touch ran' '$(touch${IFS}ran)' '$HOME' '${HOME}' '$$' \
    "it's" 'two  spaces' ' led and trailed ' 'a"b' $'back\\slash\\' '*' '~' '{a,b}' '[!x]' '-rf' '--help' '--dry-run' '=' '#' '!!' '%s%n' \
    'é💥' $'two\nlines' $'tab\there' $'\a\e[2J' 'a[$(touch ran)]'
}

# sent OPTION: the value that the submission got for that option.
sent() {
  local word
  while IFS= read -r -d '' word; do
    [[ $word != "$1="* ]] || printf '%s.' "${word#*=}" # the dot keeps newlines at the end
  done <"${BOX}/words"
}

# bats test_tags=slow
@test "hostile values of six knobs arrive unchanged, and nothing in them is run" {
  tried=0
  while IFS= read -r -d '' value; do
    rm -f "${BOX}/words"
    spec="${BOX}/${value//\//_}.yaml"
    printf 'workload: ppo\n# %s\n' "$value" >"$spec"
    printf '%s' "$value" >"${BOX}/over"
    sandbox::run "OVERRIDES=${value}" "SUBMISSION_ID=${value}" "CODE_ID=${value}" "MODEL=${value}" "DATASET=${value}" \
      "OVERRIDES_FILE=${BOX}/over" scripts/44_submit_sdk.sh "$spec"
    assert_status 0
    for option in --overrides --submission-id --code-id --default-model --default-dataset; do
      [[ $(sent "$option") == "${value}." ]] || fail "${option}: '$(sent "$option")' is not '${value}.'"
      tried=$((tried + 1))
    done
    [[ $(sent --spec-name) == "${spec}." ]] || fail 'another name of the JobSpec'
    diff "$spec" <(tar -xOf "${BOX}/stream" job_spec)
    diff "${BOX}/over" <(tar -xOf "${BOX}/stream" overrides)
    tried=$((tried + 3))
  done < <(hostile)
  [[ ! -e ran && -z $(find "$BATS_TEST_TMPDIR" -name ran) ]] || fail 'a value was run'
  printf '# %d values, none run\n' "$tried" >&3
  ((tried >= 200))
}

@test "the name of a missing file is printed without terminal escapes" {
  sandbox::run scripts/44_submit_sdk.sh $'/no/\e[2J\nsuch.yaml'
  assert_status 2
  assert_line "error   the JobSpec '/no/?[2J?such.yaml' is not a readable file: name one that is."
}
