#!/usr/bin/env bats
# The Makefile is a menu: a recipe with an if, a loop or a $$ is a script.

setup() {
  load rules_helper
  rules::files Makefile
  recipes=$(sed -n 's/^\t//p' Makefile)
  [[ -n $recipes ]]
}

@test "recipes have no if, no loop, no \$\$, no chaining" {
  run grep -nE '(^|[ @;])(if|for|while|until|case)[ (]|\$\$|&&|\|\||;|\\$' <<<"$recipes"
  [[ $status == 1 ]]
}

# promise: passes a value to a shell, or lets make expand it
@test "no recipe names a variable: make would expand it, and a shell read what is in it" {
  run grep -nF '$' <<<"$recipes"
  [[ $status == 1 ]]
  rules::none '^	.*[$][({@<^?*%+|A-Za-z0-9]|^[^#	]*: ?;.*[$]'
}

@test "every recipe line calls one script that exists and is executable" {
  while read -r line; do
    [[ $line =~ ^@?((scripts|maintain)/[A-Za-z0-9_/]+\.sh)( |$) && -x ${BASH_REMATCH[1]} ]] || {
      printf '%s\n' "$line"
      return 1
    }
  done <<<"$recipes"
}

@test "every target says what it is for, and make alone prints the menu" {
  targets=$(grep -E '^[a-z][a-z-]*:' Makefile | grep -cvE ':=|: export')
  [[ $(grep -cE '^[a-z][a-z-]*:.*## ' Makefile) == "$targets" ]]
  run make --no-print-directory
  [[ $status == 0 && $output == *quickstart* && $output == *history* ]]
}

# out_of_order MAKEFILE: each numbered script that a target runs after one with a higher number, as "TARGET: HIGHER before LOWER".
out_of_order() {
  awk -F '[/_]' '/^[a-z-]+:/ { target = $0; sub(/:.*/, "", target); last = "" }
    /^\t@scripts\/[0-9][0-9]_/ { if ($2 < last) print target ": " last " before " $2; last = $2 }' "$1"
}

@test "a target runs the numbered scripts in order; quickstart builds the image first" {
  [[ $(out_of_order Makefile) == 'quickstart: 10 before 00' ]] || {
    out_of_order Makefile
    return 1
  }
  sed '/^quickstart: .*##/,/^$/s/50_status/53_fidelity/; t; /^quickstart: .*##/,/^$/s/53_fidelity/50_status/' Makefile >"${BATS_TEST_TMPDIR}/planted"
  [[ $(out_of_order "${BATS_TEST_TMPDIR}/planted") == $'quickstart: 10 before 00\nquickstart: 53 before 50' ]]
}

@test "every 'make -C maintain' that we name is a target, and what it runs exists" {
  rules::files '*.md' '*.py' '*.bash' '*.sh' env/defaults.env
  mapfile -t named < <(grep -ohE 'make -C maintain [a-z-]+' "${FILES[@]}" | sort -u)
  ((${#named[@]} > 5))
  for command in "${named[@]}"; do grep -qE "^${command##* }:.*## " maintain/Makefile || { printf '%s\n' "$command" && false; }; done
  mapfile -t run < <(sed -n 's/^\t//p' maintain/Makefile | grep -oE '(\.\./|\./|maintain/)[A-Za-z0-9_/]+\.(sh|py)')
  ((${#run[@]} > 5))
  for file in "${run[@]}"; do [[ -e maintain/${file} || -e $file ]] || { printf '%s\n' "$file" && false; }; done
}
