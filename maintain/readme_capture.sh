#!/usr/bin/env bash
# readme_capture: puts some lines of a real `make quickstart` into the README.
#
#   make quickstart 2>&1 | tee FILE; make -C maintain readme ARGS=FILE
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
excerpt=$(capture::excerpt "$1") || cli::die 2 "$(cli::shown "$1") has no lines of a quick start: name the file with the output of 'make quickstart'."
# Markdown needs an empty line above and below an indented block.
printf '\n%s\n\n' "$excerpt" | python3 "${REPO_DIR}/maintain/page.py" put README.md quickstart
