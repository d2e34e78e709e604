#!/usr/bin/env bash
# readme_capture: puts the output of a real `make quickstart` into docs/quickstart.md, and some of its lines into the README.
#
#   make quickstart 2>&1 | tee FILE; scripts/dev/readme_capture.sh FILE
#   scripts/dev/readme_capture.sh --excerpt     print the README's lines, taken from docs/quickstart.md
#
# Left out of docs/quickstart.md: checks that passed, steps 3 to 8 of the training, and this machine's own paths. Which lines the
# README shows is decided in capture::excerpt. tests/bats/rules/readme.bats checks that the two pages agree.
source "$(dirname "$0")/../lib/regress.bash"

capture::page() { python3 "${REPO_DIR}/scripts/dev/page.py" "$@"; }

capture::shorten() {
  sed -E "s|$(cd "$REPO_DIR" && pwd)/||g; s|[^ (]*/(workdir/)|\1|g" "$1" |
    grep -vE '^ok      (helper|Compose|no container|the names|port|[0-9]+ GiB|no GPU|shared root|[^ ]+ (is writable|has locks)|verl comes)|^(make|real|user|sys)|^ *$' |
    awk '/ step [3-8] of 10/ { if (!left++) print "        …"; next } { print }' | sed 's/^/    /; s/ *$//'
}

capture::excerpt() {
  capture::page part docs/quickstart.md quickstart | grep -E \
    -e '^    ok .*( checks passed| is ALIVE | dashboard: | SUCCEEDED )' \
    -e '^    changed (containers|snapshot|submitted) ' \
    -e '^    changed [^ ]*/(sums|tiny-qwen2) made ' \
    -e '^ +(step 1 of 10|step 10 of 10|MVP_PRECHECK_|driver_info)' \
    -e '^ +[0-9.]+ s  in [0-9]+ phases'
}

# capture::put PAGE: with an empty line above and below, which Markdown needs around an indented block.
capture::put() { { printf '\n' && cat && printf '\n'; } | capture::page put "$1" quickstart; }

cli::accept '--excerpt [FILE]' "$@"
[[ -n ${1:-} ]] || cli::die 2 "readme_capture.sh needs the file with the output of 'make quickstart': name it."
if [[ $1 == --excerpt ]]; then
  capture::excerpt
else
  capture::shorten "$1" | capture::put docs/quickstart.md
  capture::excerpt | capture::put README.md
fi
