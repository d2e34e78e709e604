#!/usr/bin/env bats
# Plain English, the field's own words. CONTRIBUTING.md says how we write; these are the words that newcomers stumbled over.

setup() { load rules_helper; }

# english::found FILE...: lines with such a word, as FILE:LINE:TEXT.
english::found() {
  local words='anew|mend(s|ed|ing)?|blanks?|looked at|lines? holds?|stands?|stood|somebody|anybody|besides|aloud'
  words+='|(is|are) told|told (apart|off|by)'
  # A name is read as its words: test_is_made_anew.
  grep -HniE -e "(^|[^a-z])(${words// /[ _]})([^a-z]|\$)" -- "$@" |
    grep -vE 'rule-ok: |[Ss]tands? (for|still|between|in for)|stood still|stand[-_]in' || true
}

@test "docs, messages, comments and names use plain English: again, fix, space, check, passed, is" {
  rules::files '*.md' '*.sh' '*.bash' '*.bats' '*.py' 'py/*.json' Makefile .ci/run 'env/*' 'jobspecs/*' 'suites/*'
  rules::leave_out '^tests/recorded/|^tests/bats/rules/english\.bats$|^docs/reliability\.md$'
  found=$(english::found "${FILES[@]}")
  [[ -z $found ]] || {
    printf '%s\n' "$found"
    return 1
  }
}

@test "the rule can fail: such a word is found, a real exception is not" {
  printf '%s\n' 'Submit it anew.' 'GRPO stands for a name' 'blanks # rule-ok: what the tokenizer calls them' '13 of 13 lines hold' \
    'def test_the_id_is_made_anew(): its user is_told' >"${BATS_TEST_TMPDIR}/page.md"
  run english::found "${BATS_TEST_TMPDIR}/page.md"
  [[ $output == "${BATS_TEST_TMPDIR}/page.md:1:Submit it anew."$'\n'"${BATS_TEST_TMPDIR}/page.md:4:13 of 13 lines hold"$'\n'"${BATS_TEST_TMPDIR}/page.md:5:def test_the_id_is_made_anew(): its user is_told" ]]
}
