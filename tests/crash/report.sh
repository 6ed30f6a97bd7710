#!/usr/bin/env bash
# tests/crash/report.sh RESULTS: the page of promises, made of the lines that the tests of this run wrote.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
commit=$(git -C "$here" rev-parse --short HEAD 2>/dev/null || echo unknown)
[ -z "$(git -C "$here" status --porcelain --untracked-files=no -- ":!docs/RELIABILITY.md" 2>/dev/null)" ] || commit="$commit with changes"
counts="the short counts of \`./check\`; \`./check --reliability\` runs the long ones"
[ "${MILLRACE_FULL:-0}" = 1 ] && counts="the long counts of \`./check --reliability\`"
cat <<HEAD
# Reliability

Each promise, the test that holds it, how often it was tried, and what was seen. Written by the tests themselves, with $counts.

Commit $commit, $(date -u +%Y-%m-%d), $(nproc) cores, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), Linux $(uname -r | cut -d- -f1).

| promise | tried | seen | test |
|---|---:|---|---|
HEAD
awk -F'\t' '{ printf "| %s | %s | %s | `%s` |\n", $1, $3, $4, $2 }' "$1"
