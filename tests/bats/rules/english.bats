#!/usr/bin/env bats
# Plain English, the field's own words. CONTRIBUTING.md says how we write; these are the words that newcomers stumbled over.

setup() { load rules_helper; }

# english::found FILE...: lines with such a word, as FILE:LINE:TEXT.
english::found() {
  grep -HnwiE -e 'anew|mend(s|ed|ing)?|blanks?|looked at|lines? holds?|stands?|stood' -- "$@" |
    grep -vE 'rule-ok: |[Ss]tands? (for|still|between|in for)|stood still|stand-in' || true
}

@test "no word of a dialect of our own in docs, messages, comments and test names: again, fix, space, checked, passed, is" {
  rules::files '*.md' '*.sh' '*.bash' '*.bats' '*.py' 'py/*.json' Makefile .ci/run 'env/*' 'jobspecs/*'
  rules::leave_out '^tests/recorded/|^tests/bats/rules/english\.bats$|^docs/reliability\.md$'
  found=$(english::found "${FILES[@]}")
  [[ -z $found ]] || {
    printf '%s\n' "$found"
    return 1
  }
}

@test "the rule can fail: such a word is found, a real exception is not" {
  printf '%s\n' 'Submit it anew.' 'GRPO stands for a name' 'blanks # rule-ok: what the tokenizer calls them' '13 of 13 lines hold' >"${BATS_TEST_TMPDIR}/page.md"
  run english::found "${BATS_TEST_TMPDIR}/page.md"
  [[ $output == "${BATS_TEST_TMPDIR}/page.md:1:Submit it anew."$'\n'"${BATS_TEST_TMPDIR}/page.md:4:13 of 13 lines hold" ]]
}
