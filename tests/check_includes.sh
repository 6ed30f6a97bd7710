#!/usr/bin/env bash
# Keeps the rooms of src/ apart (docs/ARCHITECTURE.md, "Rooms"). Bash, awk and find only.
#
#   tests/check_includes.sh [ROOT]        checks ROOT/src (default: this repository); one line per offence,
#                                         `file:line: rule: message`; exit 1 if there is any
#   tests/check_includes.sh --self-test   shows on a temporary tree that every rule catches its offence
#
# Rules
#   room           a source file stands in a room of the table below
#   include-form   a quoted include names a file from the src/ root, without `.` or `..`, not by a macro
#   include        a file includes its own room and lower levels only; rooms of one level never each other
#   ops-backend    in ops/, only *_cpu.cc (and its test *_cpu_test.cc) includes cpu/, only *_cuda.* (and
#                  *_cuda_test.*) includes cuda/
#   platform-if    #if, #ifdef, #ifndef, #elif only in core/platform.h, cpu/, cuda/, dist/; include guards
#                  (first directive #ifndef X, second #define X, last its #endif) may stand anywhere
#   file-size      at most 700 lines
#   family-name    outside model/, nothing is compared with the quoted name of a model family of
#                  model/model_list.inc; the list exists and can be read once model/ holds a source
set -euo pipefail
shopt -s inherit_errexit  # a failing awk must not look like a clean tree
export LC_ALL=C

readonly kRooms="core=0 io=1 graph=1 exec=2 data=2 cpu=3 cuda=3 dist=3 ops=4 model=5 train=6 doctor=7 cli=8"
readonly kMaxLines=700
readonly kSource='\.(h|hh|hpp|c|cc|cpp|cu|cuh|inc|inl)$'

# Shared by both awk programs: a line without its comments and raw-string bodies; ordinary strings stay.
readonly kStrip='
function strip(s,    out, p, token) {
  out = ""
  while (s != "") {
    if (mode == "comment" || mode == "raw") {
      p = index(s, ending)
      if (p == 0) return out
      s = substr(s, p + length(ending))
      out = out (mode == "raw" ? "\"\"" : " ")
      mode = ""
      continue
    }
    if (!match(s, /\/\/|\/\*|"|\047/)) return out s
    token = substr(s, RSTART, RLENGTH)
    out = out substr(s, 1, RSTART - 1)
    s = substr(s, RSTART + RLENGTH)
    if (token == "//") return out
    if (token == "/*") { mode = "comment"; ending = "*/" }
    else if (token == "\047" && out ~ /[0-9A-Za-z_]$/) out = out token  # digit separator
    else if (token == "\"" && out ~ /(^|[^0-9A-Za-z_])(u8|u|U|L)?R$/ && (p = index(s, "("))) {
      mode = "raw"
      ending = ")" substr(s, 1, p - 1) "\""
      s = substr(s, p + 1)
    }
    else if (token == "\"" ? match(s, /^([^"\\]|\\.)*"/) : match(s, /^([^\047\\]|\\.)*\047/)) {
      out = out token substr(s, 1, RLENGTH)
      s = substr(s, RLENGTH + 1)
    }
    else out = out token
  }
  return out
}
'

# The names in model_list.inc: quoted strings, and the first argument of an entry such as MR_MODEL(gpt).
readonly kFamilies='
{ sub(/\r$/, ""); code = strip($0) }
{
  if (match(code, /\([ \t]*[A-Za-z_][A-Za-z0-9_]*/)) {
    name = substr(code, RSTART + 1, RLENGTH - 1)
    sub(/^[ \t]*/, "", name)
    print name
  }
  while (match(code, /"[^"]+"/)) {
    print substr(code, RSTART + 1, RLENGTH - 2)
    code = substr(code, RSTART + RLENGTH)
  }
}
'

readonly kCheck='
BEGIN {
  count = split(rooms, entry, " ")
  for (i = 1; i <= count; ++i) { split(entry[i], pair, "="); level[pair[1]] = pair[2] + 0 }
  count = split(family_list, entry, " ")
  for (i = 1; i <= count; ++i) family["\"" entry[i] "\""] = 1
  for (i = 1; i < ARGC; ++i) exists[substr(ARGV[i], 5)] = 1  # without src/
}

function offence(line, rule, message) { printf "%s:%d: %s: %s\n", file, line, rule, message }

function start_file(    part) {
  file = FILENAME
  path = substr(file, 5)
  split(path, part, "/")
  room = part[1]
  mode = ""; continued = 0; open_compare = 0
  directives = depth = conditions = guard_end = 0
  guard = ""
  if (!(room in level)) offence(1, "room", "not in a room of src/: `" path "`")
  may_if = path == "core/platform.h" || room == "cpu" || room == "cuda" || room == "dist"
}

# An include guard is known only when the whole file has been seen.
function end_file(    i) {
  if (file == "") return
  if (lines > max_lines) offence(max_lines + 1, "file-size", lines " lines, at most " max_lines)
  for (i = 1; i <= conditions; ++i) {
    if (i == 1 && guard != "" && guarded && guard_end == directives) continue
    if (!may_if)
      offence(condition_line[i], "platform-if",
              "`" condition_text[i] "` outside core/platform.h, cpu/, cuda/, dist/")
  }
}

function check_include(text,    target, target_room, part, quoted) {
  sub(/^[ \t]*#[ \t]*(include_next|include|import)[ \t]*/, "", text)
  quoted = text ~ /^"/
  if (!quoted && text !~ /^</) { offence(FNR, "include-form", "`" text "` hides what is included"); return }
  target = substr(text, 2)
  sub(quoted ? "\".*$" : ">.*$", "", target)
  if (!quoted && !(target in exists) && target !~ /(^|\/)\.\.?\//) return  # a system or library header
  split(target, part, "/")
  target_room = part[1]
  if (target ~ /(^|\/)\.\.?\// || !(target_room in level)) {
    offence(FNR, "include-form", "`" target "` is not a path from the src/ root; libraries go in <>")
    return
  }
  if (!(room in level) || target_room == room) return
  if (level[target_room] >= level[room]) {
    offence(FNR, "include",
            room "/ (level " level[room] ") may not include `" target "` (level " level[target_room] ")")
    return
  }
  if (room == "ops" && target_room == "cpu" && path !~ /_cpu(_test)?\.cc$/)
    offence(FNR, "ops-backend", "`" target "` only from ops/*_cpu.cc")
  if (room == "ops" && target_room == "cuda" && path !~ /_cuda(_test)?\.[a-z]+$/)
    offence(FNR, "ops-backend", "`" target "` only from ops/*_cuda.*")
}

function check_directive(code,    word, name) {
  ++directives
  word = code
  sub(/^[ \t]*#[ \t]*/, "", word)
  name = word
  sub(/[^a-z_].*$/, "", word)
  sub(/^[a-z_]*[ \t]*/, "", name)
  sub(/[ \t]*$/, "", name)
  if (word == "include" || word == "include_next" || word == "import") check_include(code)
  if (word ~ /^(if|ifdef|ifndef|elif|elifdef|elifndef)$/) {
    condition_line[++conditions] = FNR
    condition_text[conditions] = "#" word " " name
  }
  if (directives == 1 && word == "ifndef") { guard = name; guarded = 0 }
  if (directives == 2 && word == "define" && name == guard) guarded = 1
  if (word ~ /^if/) ++depth
  if (word == "endif" && --depth == 0 && guard_end == 0) guard_end = directives
}

function check_families(code,    before, after, literal) {
  before = open_compare ? "== " : ""
  after = code
  while (match(after, /"[^"]+"/)) {
    before = before substr(after, 1, RSTART - 1)
    literal = substr(after, RSTART, RLENGTH)
    after = substr(after, RSTART + RLENGTH)
    if ((literal in family) &&
        (before ~ /[=!]=[ \t(]*((std::)?string(_view)?[ \t]*[({])?[ \t]*$/ || after ~ /^(sv?)?[ \t]*[=!]=/ ||
         before ~ /(compare|strn?cmp|starts_with|ends_with)[ \t]*\([^()]*$/))
      offence(FNR, "family-name", "compared with the model family " literal " outside model/")
    before = before literal
  }
}

FNR == 1 { end_file(); start_file() }
{
  lines = FNR
  sub(/\r$/, "")
  code = strip($0)
  if (!continued && code ~ /^[ \t]*#/) check_directive(code)
  if (room != "model") check_families(code)
  continued = code ~ /\\$/
  if (code !~ /^[ \t]*$/) open_compare = code ~ /[=!]=[ \t]*$/
}
END { end_file() }
'

# Prints the offences under $1/src, in order of file and line.
offences() {
  cd "$1"
  local sources others families="" file count
  mapfile -t sources < <(find src -type f | grep -E "$kSource" | sort)
  mapfile -t others < <(find src -type f | grep -Ev "$kSource" | sort)
  if [[ ${#sources[@]} -eq 0 ]]; then
    echo "src:1: room: no source file found, so nothing was checked"
    return
  fi
  if [[ -f src/model/model_list.inc ]]; then
    families=$(awk "$kStrip$kFamilies" src/model/model_list.inc | tr '\n' ' ')
    [[ -n $families ]] || echo "src/model/model_list.inc:1: family-name: no family can be read from the list"
  elif [[ " ${sources[*]}" == *" src/model/"* ]]; then
    echo "src/model/model_list.inc:1: family-name: the list is missing"
  fi
  awk -v rooms="$kRooms" -v max_lines="$kMaxLines" -v family_list="$families" "$kStrip$kCheck" "${sources[@]}"
  for file in "${others[@]}"; do
    count=$(wc -l <"$file")
    ((count <= kMaxLines)) || echo "$file:$((kMaxLines + 1)): file-size: $count lines, at most $kMaxLines"
  done
}

check() {
  local found
  found=$(offences "$1" | sort -t: -k1,1 -k2,2n)
  [[ -z $found ]] && return 0
  printf '%s\n' "$found"
  return 1
}

# --- self-test ------------------------------------------------------------------------------------

put() { mkdir -p "$tree/src/$(dirname "$1")" && printf '%b' "$2" >"$tree/src/$1"; }

# A tree that keeps every rule, with the things a careless check would trip over.
make_clean_tree() {
  put core/platform.h '#pragma once\n#if defined(__linux__)\n#endif\n'
  put core/error.h '#ifndef G_H\n#define G_H\n#include <vector>\n// #include "cli/run.h"\n#endif  // G_H\n'
  put core/text.cc '/*\n#if 0\n#include "cli/run.h"\n*/\nauto s = R"x(\n#ifdef A\n#include "cli/run.h"\n)x";\n'
  put graph/node.h '#pragma once\n#include "core/error.h"\n#define STR(include) \\\\\n  #include\n'
  put io/json.h '#pragma once\n#include "core/error.h"\n'
  put exec/ledger.h '#pragma once\n#include "graph/node.h"\n#include "io/json.h"\n'
  put data/loader.h '#pragma once\n#include "io/json.h"\n'
  put cpu/gemm.h '#pragma once\n#include "exec/ledger.h"\n#ifdef __AVX2__\n#endif\n'
  put cuda/stream.h '#pragma once\n#include <cuda/atomic>\n#if CUDART_VERSION >= 12000\n#endif\n'
  put dist/ring.h '#pragma once\n#ifdef USE_NCCL\n#endif\n'
  put ops/add.cc '#include "graph/node.h"\n#include "ops/op_list.inc"\n'
  put ops/op_list.inc 'MR_OP(add)\n'
  put ops/add_cpu.cc '#include "cpu/gemm.h"\n'
  put ops/add_cpu_test.cc '#include "cpu/gemm.h"\n'
  put ops/add_cuda.cu '#include "cuda/stream.h"\n'
  put model/model_list.inc '// MR_MODEL(not_one)\nMR_MODEL(gpt)\nMR_MODEL(Seq, "seq2seq")\n'
  put model/gpt.cc '#include "ops/op_list.inc"\nbool b = family == "gpt";\n'
  put train/trainer.cc '#include "model/model_list.inc"\nauto m = find("gpt") == end; bool c = x == "gptx";\n'
  put train/step.cc "int n = 1'000;  // it's == \"gpt\"\n"
  put doctor/fit.cc '#include "train/trainer.h"\n'
  put cli/run.cc '#include "doctor/fit.h"\n#include <CLI/CLI.hpp>\n'
  put cli/long.txt "$(printf 'x\\n%.0s' $(seq $kMaxLines))"
}

reset_tree() { rm -rf "$tree/src" && cp -r "$tree/clean" "$tree/src"; }

failures=0
# expect FILE CONTENT LINE RULE: with this file added, exactly this one offence is found.
expect() {
  reset_tree
  put "$1" "$2"
  local found status=0
  found=$("$self" "$tree") || status=$?
  if [[ $status -eq 1 && $found == "src/$1:$3: $4: "* && $found != *$'\n'* ]]; then
    echo "caught  $found"
  else
    echo "MISSED  src/$1:$3: $4 (exit $status, output: $found)"
    failures=$((failures + 1))
  fi
}

# expect_whole OUTPUT: the tree as it stands gives this and exit 1.
expect_whole() {
  local found status=0
  found=$("$self" "$tree") || status=$?
  if [[ $status -eq 1 && $found == "$1" ]]; then
    echo "caught  $found"
  else
    echo "MISSED  $1 (exit $status, output: $found)"
    failures=$((failures + 1))
  fi
}

self_test() {
  tree=$(mktemp -d)
  trap 'rm -rf "$tree"' EXIT
  local found from to expected=""
  make_clean_tree
  cp -r "$tree/src" "$tree/clean"
  if found=$("$self" "$tree") && [[ -z $found ]]; then
    echo "clean   a tree without offences passes"
  else
    echo "WRONG   a tree without offences gives: $found"
    failures=$((failures + 1))
  fi

  # Every pair of rooms at once: the offences are those upwards and across, and no others.
  for from in $kRooms; do
    for to in $kRooms; do
      put "${from%=*}/to_${to%=*}.cc" "\n#include \"${to%=*}/y.h\"\n"
      [[ $from == "$to" || ${to#*=} -lt ${from#*=} ]] || expected+="src/${from%=*}/to_${to%=*}.cc:2: include"$'\n'
    done
  done
  found=$("$self" "$tree" || true)
  if [[ $(cut -d: -f1-3 <<<"$found") == "$(sort <<<"${expected%$'\n'}")" ]]; then
    echo "caught  all $(wc -l <<<"$found") pairs of rooms that may not meet, for example:"
    echo "caught  ${found%%$'\n'*}"
  else
    echo "MISSED  some pair of rooms:"
    diff <(cut -d: -f1-3 <<<"$found") <(sort <<<"${expected%$'\n'}") || true
    failures=$((failures + 1))
  fi

  expect io/x_test.cc '#include "graph/node.h"  // why\n' 1 include
  expect io/x.cc '  #  include"graph/node.h"\n' 1 include
  expect io/x.cc '#include <graph/node.h>\n' 1 include
  expect io/x.cc '/* a\n b */ #include "graph/node.h"\n' 2 include
  expect io/x.cc '#include "../graph/node.h"\n' 1 include-form
  expect io/x.cc '#include "core/../graph/node.h"\n' 1 include-form
  expect io/x.cc '#include <core/../graph/node.h>\n' 1 include-form
  expect io/x.cc '#include "json.h"\n' 1 include-form
  expect io/x.cc '#include "zlib/zlib.h"\n' 1 include-form
  expect io/x.cc '#include HEADER\n' 1 include-form
  expect ops/mul.cc '#include "cpu/gemm.h"\n' 1 ops-backend
  expect ops/mul.cc '#include "cuda/stream.h"\n' 1 ops-backend
  expect ops/mul.h '#include "cpu/gemm.h"\n' 1 ops-backend
  expect ops/mul_test.cc '#include "cpu/gemm.h"\n' 1 ops-backend
  expect ops/mul_cpu.h '#include "cpu/gemm.h"\n' 1 ops-backend
  expect ops/mul_cpu.cc '#include "cuda/stream.h"\n' 1 ops-backend
  expect ops/mul_cuda.cu '#include "cpu/gemm.h"\n' 1 ops-backend
  expect ops/mul_cuda.cu '#ifdef __CUDA_ARCH__\n#endif\n' 1 platform-if
  expect train/x_test.cc '\n#if defined(MR_CUDA)\n#endif\n' 2 platform-if
  expect core/x.h '#pragma once\n # ifdef _WIN32\n#endif\n' 2 platform-if
  expect core/x.h '#pragma once\n#ifndef X\n#define X\n#endif\n' 2 platform-if
  expect core/x.h '#ifndef NDEBUG\n#define NDEBUG\n#endif\n#include <vector>\n' 1 platform-if
  expect core/x.h '#ifndef X_H\n#define X_H\n#ifdef __APPLE__\n#endif\n#endif\n' 3 platform-if
  expect core/x.h '#ifndef X_H\n#define X_H\n#elif defined(Y)\n#endif\n' 3 platform-if
  expect cli/platform.h '#if 1\n#endif\n' 1 platform-if
  expect io/long.cc "$(printf 'int x;\\n%.0s' $(seq $((kMaxLines + 1))))" $((kMaxLines + 1)) file-size
  expect io/long.txt "$(printf 'x\\n%.0s' $(seq $((kMaxLines + 1))))" $((kMaxLines + 1)) file-size
  expect cli/x.cc 'if (family == "gpt") {}\n' 1 family-name
  expect cli/x_test.cc '\nif (family != std::string("seq2seq")) {}\n' 2 family-name
  expect train/x.cc 'if ("gpt"sv == family) {}\n' 1 family-name
  expect train/x.cc 'if (family ==\n\n    "gpt") {}\n' 3 family-name
  expect train/x.cc 'if (family ==\r\n    "gpt") {}\r\n' 2 family-name
  expect train/x.cc 'if (strcmp(family, "gpt") == 0) {}\n' 1 family-name
  expect train/x.cc 'if (a == "b" && family.starts_with("gpt")) {}\n' 1 family-name
  expect model/model_list.inc '// MR_MODEL(gpt)\n' 1 family-name
  expect attic/x.cc 'int x;\n' 1 room
  expect x.cc 'int x;\n' 1 room

  reset_tree
  rm "$tree/src/model/model_list.inc"
  expect_whole "src/model/model_list.inc:1: family-name: the list is missing"
  rm -rf "$tree/src" && mkdir "$tree/src"
  expect_whole "src:1: room: no source file found, so nothing was checked"

  echo "self-test: $failures failures"
  [[ $failures -eq 0 ]]
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
self="$here/${BASH_SOURCE[0]##*/}"
case "${1-}" in
  --self-test) self_test ;;
  -*) echo "usage: $0 [ROOT | --self-test]" >&2; exit 2 ;;
  *) check "${1:-$here/..}" ;;
esac
