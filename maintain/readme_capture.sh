#!/usr/bin/env bash
# readme_capture: puts some lines of a real `make quickstart` into the README.
#
#   make quickstart 2>&1 | tee FILE; maintain/readme_capture.sh FILE
#
# capture::excerpt decides which lines. This machine's own paths are shortened.
source "$(dirname "$0")/../scripts/lib/regress.bash"

capture::excerpt() {
  sed -E "s|${REPO_DIR}/||g; s|[^ (]*/(workdir/)|\1|g; s/^/    /; s/ *$//" "$1" | grep -E \
    -e '^    ok .*( checks passed| is ALIVE | dashboard: | SUCCEEDED )' \
    -e '^    changed (containers|snapshot|submitted) ' \
    -e '^    changed [^ ]*/(sums|tiny-qwen2) made ' \
    -e '^ +(step 1 of 10|step 10 of 10|MVP_PRECHECK_|driver_info)' \
    -e '^ +[0-9.]+ s  in [0-9]+ phases'
}

cli::accept '[FILE]' "$@"
[[ -n ${1:-} ]] || cli::die 2 "readme_capture.sh needs the file with the output of 'make quickstart': name it."
# Markdown needs an empty line above and below an indented block.
{ printf '\n' && capture::excerpt "$1" && printf '\n'; } | python3 "${REPO_DIR}/maintain/page.py" put README.md quickstart
